/* Philox-4x32-10: a random function of a key and a counter (Salmon, Moraes, Dror, Shaw,
 * "Parallel random numbers: as easy as 1, 2, 3", SC'11).
 *
 * Nothing in sluice draws from a stream. Each number is a function of the seed and of what the
 * number is for, so it does not depend on who computes it, when, or in which order:
 *
 *   key      seed (64 bits), its upper half mixed with a domain: masks, initial values, …
 *   counter  [0] group of four elements within a sample  [1] global sample
 *            [2] site: which layer and which of its masks, or which parameter
 *            [3] step
 *            Groups from 2^32 on, which attention has in long samples, go on in the site's upper
 *            eight bits, which no site reaches.
 *   output   word i belongs to element 4 * counter[0] + i
 */
#ifndef SLI_CORE_PHILOX_H
#define SLI_CORE_PHILOX_H

#include "core/inline.h"

#include <stdint.h>

enum sli_random_domain {
    SLI_RANDOM_DROPOUT = 1,
    SLI_RANDOM_INIT = 2,
    SLI_RANDOM_SAMPLE = 3, /* synthetic texts */
    SLI_RANDOM_GENERATE = 4,
    SLI_RANDOM_SHUFFLE = 5,
    SLI_RANDOM_CHECK = 6, /* what sl_module_check tries */
    SLI_RANDOM_FAILURES = 7,
    SLI_RANDOM_JITTER = 8,
    SLI_RANDOM_ROUND = 9, /* to bf16 */
};

typedef struct sli_philox_key {
    uint32_t word[2];
} sli_philox_key;

SLI_INLINE sli_philox_key sli_philox_key_make(uint64_t seed, enum sli_random_domain domain)
{
    sli_philox_key key = {
        {(uint32_t)seed, (uint32_t)(seed >> 32) ^ ((uint32_t)domain * 0x9E3779B9u)}};
    return key;
}

/* Where dropout's groups of a sample and its sites end: sli_site_of_group(s, g) differ below. */
enum { SLI_SITE_BITS = 24, SLI_GROUP_BITS = 64 - SLI_SITE_BITS };

/* The counter's word 2 for a group; its word 0 is the group's lower half. */
SLI_INLINE uint32_t sli_site_of_group(uint32_t site, uint64_t group)
{
    return site + ((uint32_t)(group >> 32) << SLI_SITE_BITS);
}

/* Ten rounds on one counter, in place. */
SLI_INLINE void sli_philox(sli_philox_key key, uint32_t counter[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    counter[0] = c0;
    counter[1] = c1;
    counter[2] = c2;
    counter[3] = c3;
}

/* 24 random bits as a float in [0, 1), as PyTorch's uniform has. */
SLI_INLINE float sli_uniform_from_bits(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-24f;
}

#endif
