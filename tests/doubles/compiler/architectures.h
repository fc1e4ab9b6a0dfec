// What the double of nvcc puts before generated code: for which GPUs it was asked for, which the driver's double reads.
extern "C" {
extern const char test_double_arch[];
const char test_double_arch[] = TEST_DOUBLE_ARCHITECTURES;
}
