# libblink_mpi.so, which MPI programs preload. The part that depends on an MPI library is compiled at first use
# (blinkccl/apps/mpi/binding.py), from the files installed here.
if(NOT BLINK_TESTS)
  file(GLOB mpi_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
  list(FILTER mpi_sources EXCLUDE REGEX "preload(4|_fortran)")
  add_library(mpi_objects OBJECT ${mpi_sources})
  target_include_directories(mpi_objects PUBLIC ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/../preload
    ${CMAKE_CURRENT_LIST_DIR}/../bootstrap)
  target_link_libraries(mpi_objects PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  add_library(mpi_preload_objects OBJECT ${CMAKE_CURRENT_LIST_DIR}/../preload/planner.cpp
    ${CMAKE_CURRENT_LIST_DIR}/../preload/log.cpp)
  target_include_directories(mpi_preload_objects PUBLIC ${CMAKE_CURRENT_LIST_DIR}/../preload
    ${CMAKE_CURRENT_LIST_DIR}/../bootstrap)
  set(mpi_exports ${CMAKE_CURRENT_LIST_DIR}/blink_mpi_exports.map)
  add_library(blink_mpi SHARED)
  target_link_libraries(blink_mpi PRIVATE mpi_objects mpi_preload_objects host_objects bootstrap_objects)
  target_link_options(blink_mpi PRIVATE -Wl,--version-script=${mpi_exports} -Wl,--no-undefined)
  set_target_properties(blink_mpi PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${mpi_exports})
  add_library(blink_mpi4 SHARED ${CMAKE_CURRENT_LIST_DIR}/preload4.cpp)
  add_library(blink_mpi_fortran SHARED ${CMAKE_CURRENT_LIST_DIR}/preload_fortran.cpp)
  target_link_libraries(blink_mpi_fortran PRIVATE ${CMAKE_DL_LIBS})
  foreach(second blink_mpi4 blink_mpi_fortran)
    target_link_options(${second} PRIVATE -Wl,--version-script=${mpi_exports})
  endforeach()
  if(STATIC_LIBSTDCXX)
    foreach(each blink_mpi blink_mpi4 blink_mpi_fortran)
      target_link_options(${each} PRIVATE -static-libstdc++ -static-libgcc)
    endforeach()
  endif()
  install(TARGETS blink_mpi blink_mpi4 blink_mpi_fortran LIBRARY DESTINATION blinkccl/_native)
  file(GLOB mpi_binding CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/binding.c ${CMAKE_CURRENT_LIST_DIR}/binding.inc
    ${CMAKE_CURRENT_LIST_DIR}/hosts.inc ${CMAKE_CURRENT_LIST_DIR}/core.h ${CMAKE_CURRENT_LIST_DIR}/functions.h)
  install(FILES ${mpi_binding} DESTINATION blinkccl/_native/mpi)
endif()
