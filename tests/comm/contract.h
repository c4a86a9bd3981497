/* What every backend of groups must do, as functions that each rank of a group runs. */
#ifndef TESTS_COMM_CONTRACT_H
#define TESTS_COMM_CONTRACT_H

#include "sluice/group.h"

typedef struct contract_case {
    const char *name;
    sl_status (*run)(sl_group *group, void *arg); /* arg is not used */
    int least_ranks;
} contract_case;

/* Up to one whose name is NULL. */
extern const contract_case contract_cases[];

/* Runs every operation with every type and several sizes on data that follow from `seed`, with
 * what each rank has got folded into *digest. A group's digests depend on its size and the seed. */
sl_status contract_digest(sl_group *group, uint64_t seed, uint64_t *digest);

#endif
