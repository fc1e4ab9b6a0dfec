# libblink.so, which is preloaded under programs that use NCCL. The outer half has NCCL's functions and rules, the inner
# half plans and runs; a test can take one of them and stand in for the other.
set(shim_outer arguments pending_communicators collectives communicators deadline forwards groups nccl_types operators real_nccl table version)
list(TRANSFORM shim_outer REPLACE "(.+)" "${CMAKE_CURRENT_LIST_DIR}/\\1.cpp")
file(GLOB shim_inner CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
list(REMOVE_ITEM shim_inner ${shim_outer})
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/version.cpp PROPERTIES
  COMPILE_DEFINITIONS "BLINK_VERSION=\"${version}\"")

# All of it: what links shim_objects gets both halves.
add_library(shim_objects INTERFACE)
target_link_libraries(shim_objects INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
foreach(half IN ITEMS outer inner)
  if(shim_${half})
    add_library(shim_${half}_objects OBJECT ${shim_${half}})
    target_include_directories(shim_${half}_objects PUBLIC ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/../device)
    target_link_libraries(shim_${half}_objects PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
    target_sources(shim_objects INTERFACE $<TARGET_OBJECTS:shim_${half}_objects>)
  endif()
endforeach()
target_include_directories(shim_objects INTERFACE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/../device)

if(NOT BLINK_TESTS)
  set(shim_exports ${CMAKE_CURRENT_LIST_DIR}/blink_shim_exports.map)
  # Not libnccl.so.2, as whom the dynamic linker would take it for the real one and never load that.
  add_library(blink_shim SHARED)
  target_link_libraries(blink_shim PRIVATE shim_objects)
  target_link_options(blink_shim PRIVATE -Wl,--version-script=${shim_exports} -Wl,--no-undefined)
  set_target_properties(blink_shim PROPERTIES OUTPUT_NAME blink LINKER_LANGUAGE CXX LINK_DEPENDS ${shim_exports})
  if(STATIC_LIBSTDCXX)
    target_link_options(blink_shim PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  install(TARGETS blink_shim LIBRARY DESTINATION blinkccl/_native)
endif()
