# torch_ucc::torch, and torch_ucc::torch_python for what Python loads, straight from the installed torch's headers and
# libraries: its own CMake package asks for a CUDA toolkit when torch was built with CUDA, and nothing here needs one.
# pybind11 comes with these headers, so that the extension shares torch's registered types. Also: TORCH_RELEASE, such
# as 2.13.0.
#
# Inside pip's build isolation torch is not on the path, but it is in the environment that the wheel is for: -I sees it.

set(where_is_torch "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')")
execute_process(COMMAND ${Python_EXECUTABLE} -c "${where_is_torch}" OUTPUT_VARIABLE TORCH_PREFIX)
if(NOT TORCH_PREFIX)
  execute_process(COMMAND ${Python_EXECUTABLE} -I -c "${where_is_torch}" OUTPUT_VARIABLE TORCH_PREFIX)
endif()
if(NOT TORCH_PREFIX)
  message(FATAL_ERROR "There is no torch for ${Python_EXECUTABLE} to build against: install the torch you will run with first.")
endif()

file(STRINGS ${TORCH_PREFIX}/version.py version_line REGEX "^__version__ = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" TORCH_RELEASE "${version_line}")
if(TORCH_RELEASE VERSION_LESS 2.11 OR TORCH_RELEASE VERSION_GREATER_EQUAL 2.16)
  message(FATAL_ERROR "torch ${TORCH_RELEASE} is not supported: 2.11 to 2.15 are.")
endif()
message(STATUS "torch ${TORCH_RELEASE} from ${TORCH_PREFIX}")

add_library(torch_ucc_torch INTERFACE)
add_library(torch_ucc::torch ALIAS torch_ucc_torch)
target_include_directories(torch_ucc_torch SYSTEM BEFORE INTERFACE
  ${TORCH_PREFIX}/include ${TORCH_PREFIX}/include/torch/csrc/api/include)
foreach(name torch torch_cpu c10)
  # By full path; nothing is found through a search path at run time, for torch is loaded before the extension.
  target_link_libraries(torch_ucc_torch INTERFACE ${TORCH_PREFIX}/lib/lib${name}.so)
endforeach()
add_library(torch_ucc_torch_python INTERFACE)
add_library(torch_ucc::torch_python ALIAS torch_ucc_torch_python)
target_link_libraries(torch_ucc_torch_python INTERFACE ${TORCH_PREFIX}/lib/libtorch_python.so torch_ucc_torch)
