# What goes into the wheel beside the Python files: the extensions, what it was built with, and UCC where it is carried.

# -DTORCH_UCC_BUNDLE_UCC=ON/OFF: carry UCC in the wheel; by default when ci/provision-ucc made it.
set(bundle_by_default OFF)
if(UCC_KIND STREQUAL "provisioned")
  set(bundle_by_default ON)
endif()
if(NOT DEFINED TORCH_UCC_BUNDLE_UCC) # not cached, for another UCC may be found next time
  set(TORCH_UCC_BUNDLE_UCC ${bundle_by_default})
endif()

# A prefix that will be found again without help is not remembered; nor one that the wheel carries.
set(BUILD_UCC_PREFIX "")
set(BUILD_UCX_PREFIX "")
if(NOT TORCH_UCC_BUNDLE_UCC)
  set(BUILD_UCC_PREFIX "${UCC_PREFIX}")
endif()
if(NOT UCX_KIND STREQUAL "wheel")
  set(BUILD_UCX_PREFIX "${UCX_PREFIX}")
endif()
if(TORCH_UCC_BUNDLE_UCC)
  set(BUILD_BUNDLED True)
else()
  set(BUILD_BUNDLED False)
endif()
configure_file(python/torch_ucc/_build_info.py.in _build_info.py @ONLY)

# Linked with it, not edited afterwards, which would leave room for the path that was there.
foreach(release IN LISTS TORCH_RELEASES)
  set_target_properties(_core_${release} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/_ucc/lib")
  install(TARGETS _core_${release} LIBRARY DESTINATION torch_ucc)
endforeach()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_build_info.py DESTINATION torch_ucc)
if(TORCH_UCC_BUNDLE_UCC)
  cmake_path(GET UCC_LIBRARY PARENT_PATH UCC_LIBRARY_DIR)
  file(GLOB carried RELATIVE ${UCC_LIBRARY_DIR}
    ${UCC_LIBRARY_DIR}/libucc.so.1 ${UCC_LIBRARY_DIR}/libtorch_ucc_glibc.so ${UCC_LIBRARY_DIR}/ucc/libucc_*.so)
  foreach(library ${carried})
    # A wheel has no links: each file goes in under the one name by which it is opened.
    file(REAL_PATH ${UCC_LIBRARY_DIR}/${library} file)
    cmake_path(GET library PARENT_PATH folder)
    cmake_path(GET library FILENAME name)
    install(FILES ${file} DESTINATION torch_ucc/_ucc/lib/${folder} RENAME ${name})
  endforeach()
  install(DIRECTORY ${UCC_PREFIX}/share/licences DESTINATION torch_ucc/_ucc OPTIONAL)
endif()
