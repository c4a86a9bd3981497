#define _GNU_SOURCE /* gethostname */

#include "train/binding.h"

#include "device/cpu/cpu_cores.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CORES = 4096, WORDS = MOST_CORES / 64, CARD = 1 + WORDS };

/* What a rank tells of itself: [0] its machine's name, hashed; then a bit for each allowed core. */
static sl_status write_card(int64_t card[CARD])
{
    char name[256] = "";
    uint64_t hash = 14695981039346656037U; /* FNV-1a */
    sli_cpu_cores found;
    SL_TRY(sli_cpu_cores_find(&found));
    memset(card, 0, CARD * sizeof *card);
    gethostname(name, sizeof name - 1);
    for (const char *at = name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211U;
    card[0] = (int64_t)hash;
    for (int i = 0; i < found.allowed_count; i++)
        if (found.allowed[i] < MOST_CORES)
            card[1 + found.allowed[i] / 64] |= (int64_t)(UINT64_C(1) << found.allowed[i] % 64);
    sli_cpu_cores_clear(&found);
    return SL_OK;
}

static bool have_a_core_in_common(const int64_t *one, const int64_t *other)
{
    for (int w = 1; w < CARD; w++)
        if (one[w] & other[w])
            return true;
    return false;
}

sl_status sli_binding_find(sl_group *group, bool *out)
{
    int ranks = sl_group_size(group), own = sl_group_rank(group), neighbours = 0;
    bool shared = false;
    *out = false;
    int64_t *cards = calloc((size_t)ranks * CARD, sizeof *cards);
    if (!cards)
        return sl_error(SL_ERR_MEMORY, "no memory to compare the cores of %d ranks", ranks);
    int64_t *mine = cards + (size_t)own * CARD;
    sl_status status = write_card(mine);
    if (status == SL_OK)
        status = sl_group_all_gather(group, mine, cards, CARD, SL_I64, NULL);
    for (int r = 0; r < ranks && status == SL_OK; r++) {
        const int64_t *other = cards + (size_t)r * CARD;
        if (r == own || other[0] != mine[0])
            continue;
        neighbours++;
        shared |= have_a_core_in_common(mine, other);
    }
    *out = neighbours > 0 && !shared;
    free(cards);
    return status;
}
