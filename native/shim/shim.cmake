# libblink.so, which programs that use NCCL preload.
set(native ${CMAKE_CURRENT_LIST_DIR}/..)
file(GLOB shim_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp ${native}/copies/*.cpp ${native}/preload/*.cpp
  ${native}/simulate/miad.cpp)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/real_nccl.cpp PROPERTIES
  COMPILE_DEFINITIONS "BLINK_VERSION=\"${version}\"")
add_library(shim_objects OBJECT ${shim_sources})
target_compile_definitions(shim_objects PUBLIC ${abi})
target_include_directories(shim_objects PUBLIC ${CMAKE_CURRENT_LIST_DIR} ${native}/copies ${native}/preload
  ${native}/device ${native}/bootstrap)
target_link_libraries(shim_objects PUBLIC Threads::Threads ${CMAKE_DL_LIBS})

if(NOT BLINK_TESTS)
  set(shim_exports ${CMAKE_CURRENT_LIST_DIR}/blink_shim_exports.map)
  # Not named libnccl.so.2: the dynamic linker would take it for the real one and never load that.
  add_library(blink_shim SHARED)
  target_link_libraries(blink_shim PRIVATE shim_objects bootstrap_objects)
  target_link_options(blink_shim PRIVATE -Wl,--version-script=${shim_exports} -Wl,--no-undefined)
  set_target_properties(blink_shim PROPERTIES OUTPUT_NAME blink LINKER_LANGUAGE CXX LINK_DEPENDS ${shim_exports})
  if(STATIC_LIBSTDCXX)
    target_link_options(blink_shim PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  install(TARGETS blink_shim LIBRARY DESTINATION blinkccl/_native)
endif()
