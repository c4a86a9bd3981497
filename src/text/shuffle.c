/* A permutation that is computed where it is asked for and never stored: a block cipher that takes
 * the place of a sample to another place.
 *
 *        place (2w bits)            A Feistel network permutes 2w-bit numbers, whatever the
 * function of a round left       right             is (Luby and Rackoff, "How to construct
 * pseudorandom permutations from │           │               pseudorandom functions", 1988). Here
 * it is Philox, keyed by the seed, of ⊕ ◄─ f(r) ──┤               the half, the round and the
 * epoch. ╲         ╱ ╲ ╱─────╱                 The smallest 2w that has all places may have up to
 * four times as many. A right   left'               result outside goes through the network again
 * until it is a place ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite domains",
 * 2002), which leaves a permutation of the places. */
#include "core/philox.h"
#include "sluice/app/text.h"

#include <assert.h>

enum { ROUNDS = 8 };

static uint64_t encrypt(sli_philox_key key, uint64_t epoch, int half_bits, uint64_t place)
{
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = place >> half_bits, right = place & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t word[4] = {(uint32_t)right, round, (uint32_t)epoch, (uint32_t)(epoch >> 32)};
        sli_philox(key, word);
        uint64_t mixed = left ^ (word[0] & mask);
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

int64_t sl_shuffled(int64_t place, int64_t count, uint64_t seed, int64_t epoch)
{
    sli_philox_key key = sli_philox_key_make(seed, SLI_RANDOM_SHUFFLE);
    int half_bits = 1;
    assert(place >= 0 && place < count && count <= SL_MAX_SHUFFLED);
    while (UINT64_C(1) << 2 * half_bits < (uint64_t)count)
        half_bits++;
    uint64_t at = (uint64_t)place;
    do
        at = encrypt(key, (uint64_t)epoch, half_bits, at);
    while (at >= (uint64_t)count);
    return (int64_t)at;
}
