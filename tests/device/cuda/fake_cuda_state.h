/* What tests see and set of the CUDA runtime that needs no GPU (fake_cuda.h). They find the
 * function in sluice_cuda.so. */
#ifndef TESTS_DEVICE_CUDA_FAKE_CUDA_STATE_H
#define TESTS_DEVICE_CUDA_FAKE_CUDA_STATE_H

typedef struct fake_cuda_state {
    _Atomic long waits;           /* of the host for a stream */
    _Atomic long peer_copies;     /* between devices */
    _Atomic long pageable_copies; /* from the host's memory */
    _Atomic long accesses;        /* to a pool, that another GPU was given */
    _Atomic long isolated;        /* not 0: no GPU can access another's memory */
    _Atomic long zeroing; /* not 0: copies into opened pools leave zeros, as with some drivers */
    _Atomic long norm_launches, sgd_launches, adamw_launches, entropy_launches;
    _Atomic long allocations; /* that were asked for */
    _Atomic long longest_row; /* of a product's matrices, in elements, with what pads it */
    _Atomic long product_us;  /* what each product takes, in microseconds */
    _Atomic long update_us;   /* and each update by SGD */
    _Atomic long failing;     /* this one and all later ones find no memory; 0: none */
} fake_cuda_state;

__attribute__((visibility("default"))) fake_cuda_state *fake_cuda(void);

/* What the function of the open object returns, for a test; once there is a device. */
fake_cuda_state *find_fake_cuda(void);

#endif
