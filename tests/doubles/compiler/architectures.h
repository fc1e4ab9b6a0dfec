// The text that nvcc's double puts before generated code: the requested GPUs, which the driver's double reads.
extern "C" {
extern const char test_double_arch[];
const char test_double_arch[] = TEST_DOUBLE_ARCHITECTURES;
}
