/* The links of a cluster as a file of one has them: what messages take between a job's processes,
 * level by level. All ranks of a level are in pairs, whose two ranks send to each other at the same
 * time as all other pairs: so the rate is that of each device in one direction while all send.
 *
 *     rank 0 ⇄ rank 1    rank 2 ⇄ rank 3    on one node
 *     rank 0 ⇄ rank 2    rank 1 ⇄ rank 3    beyond it
 *
 * Processes that are bound to a socket each of a node that has several tell the link within a
 * socket from that between two. */
#include "comm/agree.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/host.h"
#include "core/json.h"
#include "device/cores.h"
#include "planner/cluster.h"
#include "sluice/app/plan.h"
#include "sluice/group.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A link's lasting rate is lower than that of a single message, so it is that of many, each as
 * large as a block of an all-reduce between two ranks. They are of as much memory as no near cache
 * holds. */
enum {
    SMALL_BYTES = 4,
    LARGE_BYTES = 256 << 10,
    SLOTS = 16,
    STREAM = 64, /* large messages, from slot to slot */
    BURST = 32,  /* small ones */
    ROUNDS = 8,
    MOST_THREADS = 64,
    NOBODY = -1
};

/* What a level's slowest pair takes, in each direction. */
typedef struct level_times {
    double message; /* a small one */
    double burst, stream;
    double pairs;
} level_times;

/* Two handles of the same ranks: messages to higher ranks, and to lower ones. */
typedef struct two_ways {
    sl_group *up, *down;
    char *sent, *received; /* [SLOTS * LARGE_BYTES] */
} two_ways;

/* `count` messages to the partner, and as many from it. */
static sl_status exchange(const two_ways *ways, int partner, int count, int64_t bytes)
{
    bool is_lower = sl_group_rank(ways->up) < partner;
    int64_t words = bytes / (int64_t)sizeof(int32_t);
    sl_group *to = is_lower ? ways->up : ways->down, *from = is_lower ? ways->down : ways->up;
    sl_work *sends[STREAM] = {NULL};
    sl_status status = SL_OK;
    assert(count <= STREAM && bytes <= LARGE_BYTES);
    for (int i = 0; i < count && status == SL_OK; i++)
        status = sl_group_send(to, ways->sent + i % SLOTS * LARGE_BYTES, words, SL_I32, partner, 0,
                               &sends[i]);
    for (int i = 0; i < count && status == SL_OK; i++)
        status = sl_group_recv(from, ways->received + i % SLOTS * LARGE_BYTES, words, SL_I32,
                               partner, 0, NULL, NULL);
    for (int i = 0; i < count && sends[i]; i++) {
        sl_status sent = sl_work_wait(&sends[i]);
        status = status == SL_OK ? sent : status;
    }
    return status;
}

/* The mean of a few exchanges, which keep the two ranks in step, behind one that is not timed. */
static sl_status time_exchange(const two_ways *ways, int partner, int count, int64_t bytes,
                               double *seconds)
{
    *seconds = 0;
    SL_TRY(sl_group_barrier(ways->up, NULL));
    if (partner == NOBODY)
        return SL_OK;
    SL_TRY(exchange(ways, partner, count, bytes));
    double start = sli_clock_seconds();
    for (int i = 0; i < ROUNDS; i++)
        SL_TRY(exchange(ways, partner, count, bytes));
    *seconds = (sli_clock_seconds() - start) / ROUNDS;
    return SL_OK;
}

/* Every rank calls it, with its partner; all get the slowest pair's times. */
static sl_status time_level(const two_ways *ways, int partner, level_times *out)
{
    *out = (level_times){.pairs = partner == NOBODY ? 0 : 1};
    SL_TRY(time_exchange(ways, partner, 1, SMALL_BYTES, &out->message));
    SL_TRY(time_exchange(ways, partner, BURST, SMALL_BYTES, &out->burst));
    SL_TRY(time_exchange(ways, partner, STREAM, LARGE_BYTES, &out->stream));
    return sl_group_all_reduce(ways->up, out, sizeof *out / sizeof(double), SL_F64, SL_REDUCE_MAX,
                               NULL);
}

static sl_status open_ways(sl_group *group, two_ways *out)
{
    *out = (two_ways){.up = group,
                      .sent = calloc(SLOTS, LARGE_BYTES),
                      .received = calloc(SLOTS, LARGE_BYTES)};
    SL_TRY(sl_group_split(group, 0, &out->down));
    return out->sent && out->received ? SL_OK : sli_no_memory(NULL, "the measurement of links");
}

static void close_ways(two_ways *ways)
{
    sl_group_destroy(&ways->down);
    free(ways->sent);
    free(ways->received);
}

/* ---- Levels --------------------------------------------------------------------------------- */

typedef struct measured_links {
    int64_t *hosts;   /* [ranks] the number of each one's host, in the order of ranks */
    int64_t *sockets; /* [ranks] of its host; NO_SOCKET */
    int ranks, host_count, rack_nodes;
    level_times levels[SLI_LEVELS];
} measured_links;

/* What each rank says of itself. */
typedef struct rank_place {
    int64_t host;   /* its number of the system */
    int64_t socket; /* NO_SOCKET: it has cores of several, or its host has but one */
} rank_place;

enum { PLACE_WORDS = sizeof(rank_place) / sizeof(int64_t), NO_SOCKET = -1 };

static sl_status find_place(rank_place *out)
{
    sli_cores cores;
    SL_TRY(sli_cores_find(&cores));
    *out = (rank_place){sli_host_number(), cores.socket_count > 1 ? cores.socket : NO_SOCKET};
    sli_cores_clear(&cores);
    return SL_OK;
}

/* hosts[rank]: how many hosts came before its own. */
static void number_hosts(const rank_place *places, measured_links *links)
{
    for (int rank = 0; rank < links->ranks; rank++) {
        int first = 0;
        while (places[first].host != places[rank].host)
            first++;
        links->hosts[rank] = first < rank ? links->hosts[first] : links->host_count++;
        links->sockets[rank] = places[rank].socket;
    }
}

static sl_status find_hosts(sl_group *group, measured_links *links)
{
    rank_place own;
    links->ranks = sl_group_size(group);
    size_t ranks = (size_t)links->ranks;
    rank_place *places = calloc(ranks, sizeof *places);
    links->hosts = calloc(ranks, sizeof *links->hosts);
    links->sockets = calloc(ranks, sizeof *links->sockets);
    bool has_room = places && links->hosts && links->sockets;
    sl_status status;
    SL_TRY_OR_FAIL(has_room ? find_place(&own)
                            : sli_no_memory(NULL, "the hosts of %d ranks", links->ranks));
    SL_TRY_OR_FAIL(sl_group_all_gather(group, &own, places, PLACE_WORDS, SL_I64, NULL));
    number_hosts(places, links);
fail:
    free(places);
    return status;
}

static int level_of(const measured_links *links, int a, int b)
{
    int64_t x = links->hosts[a], y = links->hosts[b];
    bool is_socket = links->sockets[a] != NO_SOCKET && links->sockets[a] == links->sockets[b];
    if (x == y)
        return is_socket ? SLI_LEVEL_SOCKET : SLI_LEVEL_NODE;
    bool is_rack = links->rack_nodes > 0 && x / links->rack_nodes == y / links->rack_nodes;
    return is_rack ? SLI_LEVEL_RACK : SLI_LEVEL_SPINE;
}

/* The same on all ranks: each with the first that is left. */
static sl_status find_partner(const measured_links *links, int level, int own, int *out)
{
    int *partners = malloc((size_t)links->ranks * sizeof *partners);
    if (!partners)
        return sli_no_memory(NULL, "the pairs of %d ranks", links->ranks);
    for (int rank = 0; rank < links->ranks; rank++)
        partners[rank] = NOBODY;
    for (int a = 0; a < links->ranks; a++)
        for (int b = a + 1; b < links->ranks && partners[a] == NOBODY; b++)
            if (partners[b] == NOBODY && level_of(links, a, b) == level) {
                partners[a] = b;
                partners[b] = a;
            }
    *out = partners[own];
    free(partners);
    return SL_OK;
}

static sl_status time_processes(sl_group *group, measured_links *links)
{
    two_ways ways;
    sl_status status;
    SL_TRY_OR_FAIL(open_ways(group, &ways));
    for (int level = SLI_LEVEL_SOCKET; level < SLI_LEVELS; level++) {
        int partner = NOBODY;
        SL_TRY_OR_FAIL(find_partner(links, level, sl_group_rank(group), &partner));
        SL_TRY_OR_FAIL(time_level(&ways, partner, &links->levels[level]));
    }
fail:
    close_ways(&ways);
    return status;
}

/* A thread is a device of a process. */
static sl_status time_thread(sl_group *group, void *arg)
{
    level_times own = {0}, *out = sl_group_rank(group) == 0 ? arg : &own;
    int partner = sl_group_rank(group) ^ 1;
    two_ways ways;
    sl_status status;
    SL_TRY_OR_FAIL(open_ways(group, &ways));
    status = time_level(&ways, partner < sl_group_size(group) ? partner : NOBODY, out);
fail:
    close_ways(&ways);
    return status;
}

/* Cores of one process, which have those of others on its host only where they are its own. */
static sl_status count_own_cores(sl_group *group, const measured_links *links, int *out)
{
    int sharing = 1, own = sl_group_rank(group);
    int64_t mine[SLI_CORE_WORDS];
    sli_cores cores;
    SL_TRY(sli_cores_describe(mine));
    int64_t *all = calloc((size_t)links->ranks * SLI_CORE_WORDS, sizeof *all);
    if (!all)
        return sli_no_memory(NULL, "the cores of %d ranks", links->ranks);
    sl_status status;
    SL_TRY_OR_FAIL(sl_group_all_gather(group, mine, all, SLI_CORE_WORDS, SL_I64, NULL));
    SL_TRY_OR_FAIL(sli_cores_find(&cores));
    for (int rank = 0; rank < links->ranks; rank++)
        sharing += rank != own && links->hosts[rank] == links->hosts[own];
    *out = cores.core_count / (sli_cores_are_own(all, links->ranks, own) ? 1 : sharing);
    sli_cores_clear(&cores);
fail:
    free(all);
    return status;
}

/* All processes at the same time, as many threads as one has cores. Where one has a single core,
 * there is no such level: its threads would wait for each other. */
static sl_status time_threads(sl_group *group, measured_links *links)
{
    level_times *times = &links->levels[SLI_LEVEL_LIST];
    int threads = 0;
    SL_TRY(count_own_cores(group, links, &threads));
    int64_t least = threads;
    SL_TRY(sl_group_all_reduce(group, &least, 1, SL_I64, SL_REDUCE_MIN, NULL));
    if (least < 2)
        return SL_OK;
    threads = threads > MOST_THREADS ? MOST_THREADS : threads;
    SL_TRY(sl_group_barrier(group, NULL));
    SL_TRY(sl_spawn(time_thread, times, threads, NULL));
    return sl_group_all_reduce(group, times, sizeof *times / sizeof(double), SL_F64, SL_REDUCE_MAX,
                               NULL);
}

/* ---- Writing -------------------------------------------------------------------------------- */

static void write_level(const measured_links *links, int level, FILE *file)
{
    const level_times *times = &links->levels[level];
    const double fastest = 1e15; /* of a cluster file */
    const double bytes[] = {SMALL_BYTES, (double)STREAM * LARGE_BYTES},
                 seconds[] = {times->message, times->stream};
    const sl_link_cost cost = sli_link_fit(bytes, seconds, 2);
    fprintf(file, "    \"%s\": {\"measured\": \"sluice %s, %d process%s on %d host%s\", ",
            sli_level_names[level], sl_version(), links->ranks, links->ranks == 1 ? "" : "es",
            links->host_count, links->host_count == 1 ? "" : "s");
    if (level == SLI_LEVEL_RACK)
        fprintf(file, "\"nodes\": %d, ", links->rack_nodes);
    fprintf(file, "\"latency_s\": %.4g, \"bytes_per_s\": %.4g, \"message_s\": %.4g}", cost.seconds,
            cost.seconds_per_byte > 1 / fastest ? 1 / cost.seconds_per_byte : fastest,
            fmax(0, (times->burst - times->message) / (BURST - 1)));
}

static sl_status write_links(const measured_links *links, char **text)
{
    size_t bytes;
    bool is_first = true;
    FILE *file = open_memstream(text, &bytes);
    if (!file)
        return sli_no_memory(NULL, "the links");
    sli_c_numbers scope = sli_c_numbers_begin();
    fprintf(file, "{\n  \"links\": {\n");
    for (int level = 0; level < SLI_LEVELS; level++) {
        if (links->levels[level].pairs <= 0)
            continue;
        fprintf(file, "%s", is_first ? "" : ",\n");
        write_level(links, level, file);
        is_first = false;
    }
    fprintf(file, "\n  }\n}\n");
    sli_c_numbers_end(scope);
    if (fclose(file) == 0)
        return SL_OK;
    free(*text);
    *text = NULL;
    return sli_no_memory(NULL, "the links");
}

static sl_status measure_links(sl_group *group, int rack_nodes, char **text)
{
    if (!text)
        return sl_error(SL_ERR_INVALID, "sl_profile_links: text is NULL");
    *text = NULL;
    measured_links links = {.rack_nodes = rack_nodes};
    if (rack_nodes < 0)
        return sl_error(SL_ERR_INVALID, "the nodes of a rack must be 0 or more, got %d",
                        rack_nodes);
    sl_status status;
    SL_TRY_OR_FAIL(find_hosts(group, &links));
    SL_TRY_OR_FAIL(time_threads(group, &links));
    SL_TRY_OR_FAIL(time_processes(group, &links));
    status = write_links(&links, text);
fail:
    free(links.hosts);
    free(links.sockets);
    return status;
}

sl_status sl_profile_links(sl_group *group, int rack_nodes, char **text)
{
    SLI_CHECK_NOT_NULL(group);
    return sli_group_check(group, measure_links(group, rack_nodes, text));
}
