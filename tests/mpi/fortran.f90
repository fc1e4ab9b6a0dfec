! The calls of a Fortran program, with the module MODULE: mpi or mpi_f08.
program fortran
  use MODULE
  implicit none
  integer :: ierr, rank, n, i, word, own(4), all(64)
  integer(kind=8) :: total
  logical :: done
  double precision :: x(1000), y(1000)
#ifdef OF_TYPES
  type(MPI_Request) :: requests(2)
  type(MPI_Status) :: states(2)
#else
  integer :: requests(2), states(MPI_STATUS_SIZE, 2)
#endif
  call mpi_init(ierr)
  call mpi_comm_rank(MPI_COMM_WORLD, rank, ierr)
  call mpi_comm_size(MPI_COMM_WORLD, n, ierr)
  x = [(rank + i, i = 1, 1000)]
  call mpi_allreduce(x, y, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
  if (ierr /= MPI_SUCCESS .or. y(1000) /= 1000 * n + n * (n - 1) / 2) stop 3
  call mpi_allreduce(MPI_IN_PLACE, y, 1000, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, ierr)
  if (y(1) /= n + n * (n - 1) / 2) stop 4
  own = rank
  call mpi_iallreduce(rank, word, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), ierr)
  call mpi_iallgather(own, 1, MPI_INTEGER, all, 1, MPI_INTEGER, MPI_COMM_WORLD, requests(2), ierr)
  call mpi_waitall(2, requests, states, ierr)
  if (word /= n * (n - 1) / 2 .or. any(all(1:n) /= [(i, i = 0, n - 1)])) stop 5
  call mpi_ibcast(own, 4, MPI_INTEGER, n - 1, MPI_COMM_WORLD, requests(1), ierr)
  done = .false.
  do while (.not. done)
    call mpi_test(requests(1), done, MPI_STATUS_IGNORE, ierr)
  end do
  if (any(own /= n - 1) .or. requests(1) /= MPI_REQUEST_NULL) stop 6
  total = 0
  call mpi_allreduce(int(rank, 8), total, 0, MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD, ierr)
  if (total /= 0) stop 7
  call mpi_scan(rank, word, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
  if (word /= rank * (rank + 1) / 2) stop 8
  call mpi_barrier(MPI_COMM_WORLD, ierr)
  if (rank == 0) print '(a)', 'fortran is done'
  call mpi_finalize(ierr)
end program
