# Debian's cross compiler. MACHINE is a name such as aarch64, SYSROOT a folder with the libraries of Debian for that machine.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${MACHINE})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MACHINE SYSROOT)
set(CMAKE_C_COMPILER ${MACHINE}-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER ${MACHINE}-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE ${MACHINE}-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# zconf.h is in the folder of the machine.
include_directories(SYSTEM ${SYSROOT}/usr/include/${MACHINE}-linux-gnu)
