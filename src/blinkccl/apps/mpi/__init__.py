"""Support for unchanged MPI programs: the binding to their MPI library, compiled at first use."""
