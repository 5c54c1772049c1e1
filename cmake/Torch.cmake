# For the torch of Python and each torch in TORCH_UCC_MORE_TORCHES, this file makes two libraries: torch_ucc_torch_<release>, and
# torch_ucc_torch_python_<release> for what Python loads. They name the headers and libraries of that torch directly, because
# torch's own CMake package asks for a CUDA toolkit if torch was built with CUDA. pybind11 comes with these headers, so that the
# extension shares torch's registered types. The file also sets TORCH_RELEASES and TORCH_MINORS, lists such as 2.13.0;2.14.1
# and 2.13;2.14, and makes torch_ucc::torch for targets that need any one of these torches.

set(TORCH_UCC_MORE_TORCHES "" CACHE STRING "Folders named torch, of other minor releases, to build for as well")

# Inside pip's build isolation torch is not on the path, but it is in the environment that the wheel is for: -I sees it.
set(where_is_torch "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')")
execute_process(COMMAND ${Python_EXECUTABLE} -c "${where_is_torch}" OUTPUT_VARIABLE TORCH_PREFIX)
if(NOT TORCH_PREFIX)
  execute_process(COMMAND ${Python_EXECUTABLE} -I -c "${where_is_torch}" OUTPUT_VARIABLE TORCH_PREFIX)
endif()
if(NOT TORCH_PREFIX)
  message(FATAL_ERROR "There is no torch for ${Python_EXECUTABLE} to build against: install the torch you will run with first.")
endif()
set(TORCH_PREFIXES ${TORCH_PREFIX} ${TORCH_UCC_MORE_TORCHES})

set(TORCH_RELEASES "")
set(TORCH_MINORS "")
foreach(prefix IN LISTS TORCH_PREFIXES)
  file(STRINGS ${prefix}/version.py version_line REGEX "^__version__ = ")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" release "${version_line}")
  if(release VERSION_LESS 2.11 OR release VERSION_GREATER_EQUAL 2.16)
    message(FATAL_ERROR "torch ${release} is not supported: 2.11 to 2.15 are.")
  endif()
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor ${release})
  if(minor IN_LIST TORCH_MINORS)
    message(FATAL_ERROR "torch ${release} from ${prefix}: there is another torch ${minor} among those to build for.")
  endif()
  message(STATUS "torch ${release} from ${prefix}")
  list(APPEND TORCH_MINORS ${minor})
  list(APPEND TORCH_RELEASES ${release})

  add_library(torch_ucc_torch_${release} INTERFACE)
  target_include_directories(torch_ucc_torch_${release} SYSTEM BEFORE INTERFACE
    ${prefix}/include ${prefix}/include/torch/csrc/api/include)
  foreach(name torch torch_cpu c10)
    # By full path; nothing is found through a search path at run time, for torch is loaded before the extension.
    target_link_libraries(torch_ucc_torch_${release} INTERFACE ${prefix}/lib/lib${name}.so)
  endforeach()
  add_library(torch_ucc_torch_python_${release} INTERFACE)
  target_link_libraries(torch_ucc_torch_python_${release} INTERFACE ${prefix}/lib/libtorch_python.so torch_ucc_torch_${release})
endforeach()

list(GET TORCH_RELEASES 0 TORCH_RELEASE)
add_library(torch_ucc::torch ALIAS torch_ucc_torch_${TORCH_RELEASE})
