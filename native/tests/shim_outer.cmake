# Tests of libblink.so's outer half: tests/test_shim_outer_*.cpp, with stand-ins for NCCL and for the inner half.
file(GLOB outer_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/test_shim_outer_*.cpp)
set(here ${CMAKE_CURRENT_LIST_DIR})

# Missing functions are on purpose; what the stand-in calls of itself goes through the dynamic linker, as in NCCL.
add_library(stand_in_nccl SHARED ${here}/shim_stand_in_nccl.cpp)
target_link_libraries(stand_in_nccl PRIVATE Threads::Threads)
target_compile_options(stand_in_nccl PRIVATE -fsemantic-interposition)
add_library(stand_in_torch SHARED ${here}/shim_stand_in_torch.cpp)
target_link_libraries(stand_in_torch PRIVATE stand_in_nccl)
add_library(stand_in_blink SHARED ${here}/shim_stand_in_inner.cpp)
target_link_libraries(stand_in_blink PRIVATE shim_outer_objects)
set_target_properties(stand_in_nccl PROPERTIES OUTPUT_NAME nccl SOVERSION 2)
foreach(library IN ITEMS stand_in_nccl stand_in_torch stand_in_blink)
  target_include_directories(${library} PRIVATE ${here} ${here}/../shim)
  set_target_properties(${library} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${library})
endforeach()

foreach(file IN LISTS outer_tests)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_compile_options(${name} PRIVATE -UNDEBUG)
  if(name MATCHES "preload")
    target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})  # the wrappers are in stand_in_blink
  else()
    target_sources(${name} PRIVATE ${here}/shim_stand_in_inner.cpp)
    target_link_libraries(${name} PRIVATE shim_outer_objects)
  endif()
  add_dependencies(${name} stand_in_nccl stand_in_torch stand_in_blink)
  # What the stand-in for NCCL calls must find our wrappers in the program, as it would in a preloaded library.
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  target_compile_definitions(${name} PRIVATE STAND_IN_NCCL="$<TARGET_FILE:stand_in_nccl>"
    STAND_IN_TORCH="$<TARGET_FILE:stand_in_torch>" STAND_IN_BLINK="$<TARGET_FILE:stand_in_blink>")
  add_test(NAME ${name} COMMAND ${launcher} $<TARGET_FILE:${name}>)
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 ENVIRONMENT "${test_environment}")
endforeach()
