# Each tests/test_*.cpp is a program of its own: 0 is success. It may fork or start threads.
file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/test_*.cpp)

# Each test says in its first lines which sanitizers it is for: `// Sanitizers: address, thread.` The thread sanitizer is
# for tests with threads alone; without any, a test runs whatever its sanitizers are.
function(blink_is_for_sanitizer file result)
  file(STRINGS ${file} said LIMIT_COUNT 1 REGEX "^// Sanitizers: (address|thread|address, thread)\\.$")
  if(NOT said)
    message(FATAL_ERROR "${file}: its first lines lack '// Sanitizers: address.', 'thread.' or 'address, thread.'")
  endif()
  string(REGEX MATCH "^[a-z]+" sanitizer "${BLINK_SANITIZE}")
  if(said MATCHES "${sanitizer}")
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# ThreadSanitizer of GCC 12 and 13 does not start where the kernel puts memory at more than 2^28 random places.
set(launcher)
if(BLINK_SANITIZE STREQUAL "thread")
  find_program(SETARCH setarch)
  if(SETARCH)
    execute_process(COMMAND ${SETARCH} -R true RESULT_VARIABLE refused OUTPUT_QUIET ERROR_QUIET)
    if(NOT refused)
      set(launcher ${SETARCH} -R)
    endif()
  endif()
endif()

# A race stops the program; a child of a program with threads is checked too.
set(test_environment "ASAN_OPTIONS=halt_on_error=1:detect_leaks=1:strict_string_checks=1;\
UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1;TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:second_deadlock_stack=1")

# What computes little compiles in half the time so; the tests of the rest would run as much longer.
set(quickly)
if(BLINK_SANITIZE)
  set(quickly -O0)
  target_compile_options(bootstrap_objects PRIVATE -O0)
  cmake_language(DEFER CALL target_compile_options shim_objects PRIVATE -O0)
endif()

# The planner's own plans, for tests of the host engine.
find_program(PYTHON NAMES python3 python REQUIRED)
set(plans ${CMAKE_BINARY_DIR}/plans)
add_custom_target(test_plans COMMAND ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/plans.py ${plans} BYPRODUCTS ${plans})

foreach(file IN LISTS tests)
  blink_is_for_sanitizer(${file} wanted)
  if(NOT wanted)
    continue()
  endif()
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_compile_options(${name} PRIVATE -UNDEBUG)  # assert() works in tests, whatever the build type
  if(BLINK_SANITIZE MATCHES "undefined" AND NOT name MATCHES "^test_(device|kernels)")
    # Undefined behaviour is looked for in the libraries, and takes a third of the time of compiling a test that calls
    # them. Of the others the headers are what is tested.
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  if(name MATCHES "^test_emulated")
    if(BLINK_SANITIZE MATCHES "address")
      # Emulated memory is accessed by the machine, which is checked; the code of blocks has been, in test_device_*.
      target_compile_options(${name} PRIVATE -fno-sanitize=all)
    endif()
    target_link_libraries(${name} PRIVATE host_objects emulate_objects)
  elseif(name MATCHES "^test_shim_")
    target_link_libraries(${name} PRIVATE shim_objects bootstrap_objects)
    target_compile_options(${name} PRIVATE ${quickly})
  else()
    target_link_libraries(${name} PRIVATE host_objects bootstrap_objects device_objects)
    target_compile_definitions(${name} PRIVATE BLINK_TEST_PLANS="${plans}")
    add_dependencies(${name} test_plans)
  endif()
  add_test(NAME ${name} COMMAND ${launcher} $<TARGET_FILE:${name}>)
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 ENVIRONMENT "${test_environment}")
endforeach()
