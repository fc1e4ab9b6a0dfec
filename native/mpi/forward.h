// Forwarding of MPI functions: arguments are passed as words.
#pragma once

extern "C" {
using blink_mpi_any = long (*)();
// The destination of a function (of blink_mpi_function). The first caller's address selects the library.
blink_mpi_any blink_mpi_target(int function, void* caller);
// The MPI library's own function, without interposed libraries.
blink_mpi_any blink_mpi_own(int function, void* caller);
}

#pragma GCC diagnostic ignored "-Wcast-function-type"

#define WORDS_1 long a
#define WORDS_2 WORDS_1, long b
#define WORDS_3 WORDS_2, long c
#define WORDS_4 WORDS_3, long d
#define WORDS_5 WORDS_4, long e
#define WORDS_6 WORDS_5, long f
#define WORDS_7 WORDS_6, long g
#define WORDS_8 WORDS_7, long h
#define WORDS_9 WORDS_8, long i
#define WORDS_10 WORDS_9, long j
#define WORDS_11 WORDS_10, long k
#define NAMES_1 a
#define NAMES_2 NAMES_1, b
#define NAMES_3 NAMES_2, c
#define NAMES_4 NAMES_3, d
#define NAMES_5 NAMES_4, e
#define NAMES_6 NAMES_5, f
#define NAMES_7 NAMES_6, g
#define NAMES_8 NAMES_7, h
#define NAMES_9 NAMES_8, i
#define NAMES_10 NAMES_9, j
#define NAMES_11 NAMES_10, k

#define BLINK_MPI_NAME(name) MPI_##name
#define BLINK_MPI_TARGET blink_mpi_target
#define FORWARD(name, n, before)                                                                   \
  long BLINK_MPI_NAME(name)(WORDS_##n) {                                                           \
    const auto to = BLINK_MPI_TARGET(k_##name, __builtin_return_address(0));                       \
    before;                                                                                        \
    return reinterpret_cast<long (*)(WORDS_##n)>(to)(NAMES_##n);                                   \
  }
