/* The devices that cases run on: CPUs of every instruction set, each with several thread counts,
 * and one whose table lacks all optional slots; or those that SLUICE_TEST_DEVICES names ("cpu:0").
 * Devices of one family must give the same bits. */
#ifndef TESTS_DEVICE_LAB_H
#define TESTS_DEVICE_LAB_H

#include "device/cases.h"

enum { LAB_FAMILIES = 16, LAB_MEMBERS = 4 };

typedef struct lab_family {
    int count;
    sl_device *members[LAB_MEMBERS];
} lab_family;

typedef struct lab {
    int count;
    lab_family families[LAB_FAMILIES];
    sl_device_list *named; /* NULL: the CPUs */
    uint64_t seed;         /* of all random numbers: SLUICE_TEST_SEED */
} lab;

/* For cmocka's groups; *state is a lab. */
int lab_create(void **state);
int lab_destroy(void **state);

/* Runs the case on every device: it must give the reference's values, the same bits on all of a
 * family, and change nothing that it only reads. */
void check_case(const lab *all, const op_case *c);

/* Runs it on one device and reads the array, malloc'ed. */
void *result_of(sl_device *device, const op_case *c, int array);

#endif
