# torch_ucc::ucc and torch_ucc::ucp, from wherever python/torch_ucc/_native/loading.py finds them: the search is written once.
# Also: UCC_PREFIX, UCC_KIND, UCC_VERSION and the same of UCX.

function(torch_ucc_search)
  set(environment "")
  foreach(name UCC UCX)
    if(${name}_HOME)
      list(APPEND environment "${name}_HOME=${${name}_HOME}")
    endif()
  endforeach()
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env ${environment}
            ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/python/torch_ucc/_native/loading.py
            --build ${PROJECT_SOURCE_DIR} --json
    OUTPUT_VARIABLE answer ERROR_VARIABLE reason RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    message(FATAL_ERROR "${reason}")
  endif()
  foreach(name UCC UCX)
    foreach(field prefix kind version library include why)
      string(JSON value GET "${answer}" ${name} ${field})
      string(TOUPPER ${field} FIELD)
      set(${name}_${FIELD} "${value}" PARENT_SCOPE)
      set(${name}_${FIELD} "${value}")
    endforeach()
    message(STATUS "${name} ${${name}_VERSION} from ${${name}_PREFIX} (${${name}_WHY})")
  endforeach()
endfunction()

# An imported library beside the main one of its prefix, by its unversioned or versioned name.
function(torch_ucc_import target library include)
  add_library(${target} SHARED IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${library}")
  target_include_directories(${target} SYSTEM INTERFACE "${include}")
endfunction()

torch_ucc_search()
cmake_path(GET UCX_LIBRARY PARENT_PATH UCX_LIBRARY_DIR)
torch_ucc_import(torch_ucc::ucs "${UCX_LIBRARY_DIR}/libucs.so.0" "${UCX_INCLUDE}")
torch_ucc_import(torch_ucc::ucp "${UCX_LIBRARY}" "${UCX_INCLUDE}")
torch_ucc_import(torch_ucc::ucc "${UCC_LIBRARY}" "${UCC_INCLUDE}")
target_link_libraries(torch_ucc::ucp INTERFACE torch_ucc::ucs)
target_link_libraries(torch_ucc::ucc INTERFACE torch_ucc::ucs)
# UCC has no path of its own to UCX: what links to it keeps libucs even if it calls nothing there.
target_link_options(torch_ucc::ucs INTERFACE LINKER:--no-as-needed)
