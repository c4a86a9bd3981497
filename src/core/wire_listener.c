#define _GNU_SOURCE /* accept4 */
#include "core/wire_listener.h"

#include "core/clock.h"
#include "core/file.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* SPARE: unknown callers beyond one for each rank, and descriptors beyond those of callers. */
enum { SPARE_CALLERS = 64, SPARE_DESCRIPTORS = 32, EVENTS = 64 };
enum { CALLS_A_TURN = 64 };

static const double prove_seconds = 5; /* for a caller to prove that it knows the key */
static const double short_of_files_seconds = 0.1;

/* What epoll tells of: a caller's index, or one of these. */
static const uint64_t listener_event = UINT64_MAX, owner_event = UINT64_MAX - 1;

typedef enum caller_state {
    ABSENT,   /* no caller; of a rank: has not called */
    GREETING, /* has not said hello */
    PROVING,  /* has, and was answered */
    IN,       /* a rank */
    FAILING,  /* a rank whose end its owner is to be told, `why` */
    GONE      /* a rank that has ended */
} caller_state;

typedef struct caller {
    sli_wire_connection connection;
    caller_state state;
    sli_wire_state why;
    int rank;     /* from PROVING on */
    double heard; /* when, on the listener's clock */
} caller;

struct sli_wire_listener {
    sli_wire_listener_options options;
    unsigned char key[SLI_WIRE_KEY_BYTES];
    int fd, events; /* -1: closed */
    sli_running_clock clock;
    double said_alive, deaf_until;
    bool deaf; /* the limit on open files is reached, so calls are left waiting */
    int room, failing;
    caller *callers; /* [ranks + room] by rank, then whoever is unknown */
};

/* ---- The table ---------------------------------------------------------------------------- */

static int ranks_of(const sli_wire_listener *listener)
{
    return listener->options.ranks;
}

static void watch(const sli_wire_listener *listener, int operation, int fd, uint64_t event)
{
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = event};
    (void)epoll_ctl(listener->events, operation, fd, &wanted);
}

static void forget(caller *unknown)
{
    sli_wire_close(&unknown->connection);
    unknown->state = ABSENT;
}

/* The owner is told at the end of the turn: it may be amid something. */
static void fail(sli_wire_listener *listener, caller *rank, sli_wire_state why)
{
    if (rank->state != IN)
        return;
    sli_wire_close(&rank->connection);
    rank->state = FAILING;
    rank->why = why;
    listener->failing++;
}

static bool forget_oldest(sli_wire_listener *listener)
{
    caller *oldest = NULL;
    for (int i = 0; i < listener->room; i++) {
        caller *one = &listener->callers[ranks_of(listener) + i];
        if (one->state != ABSENT && (!oldest || one->heard < oldest->heard))
            oldest = one;
    }
    if (oldest)
        forget(oldest);
    return oldest != NULL;
}

static int free_index(const sli_wire_listener *listener)
{
    for (int i = ranks_of(listener); i < ranks_of(listener) + listener->room; i++)
        if (listener->callers[i].state == ABSENT)
            return i;
    return -1;
}

/* ---- Calls -------------------------------------------------------------------------------- */

static void add_caller(sli_wire_listener *listener, int fd)
{
    int index = free_index(listener);
    if (index < 0 && forget_oldest(listener))
        index = free_index(listener);
    if (index < 0) {
        close(fd);
        return;
    }
    sli_wire_prepare(fd);
    listener->callers[index] = (caller){.state = GREETING, .heard = listener->clock.seconds};
    listener->callers[index].connection = (sli_wire_connection){.fd = fd,
                                                                .ranks = ranks_of(listener),
                                                                .kinds = listener->options.kinds};
    watch(listener, EPOLL_CTL_ADD, fd, (uint64_t)index);
}

static void be_deaf(sli_wire_listener *listener, bool deaf)
{
    if (listener->deaf == deaf || listener->fd < 0)
        return;
    listener->deaf = deaf;
    listener->deaf_until = listener->clock.seconds + short_of_files_seconds;
    watch(listener, deaf ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, listener->fd, listener_event);
}

/* Where no more files can be opened the oldest unknown caller makes way; without one the calls are
 * left waiting for a moment, for poll would report them again and again. */
static void accept_calls(sli_wire_listener *listener)
{
    for (int i = 0; i < CALLS_A_TURN; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            add_caller(listener, fd);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if ((errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) &&
                   !forget_oldest(listener)) {
            be_deaf(listener, true);
            return;
        }
    }
}

/* A caller whose rank has called before is no rank, whatever it knows. */
static void answer_hello(sli_wire_listener *listener, caller *from)
{
    unsigned char hello[SLI_WIRE_HELLO_BYTES], nonce[SLI_WIRE_NONCE_BYTES];
    sli_wire_take(&from->connection, hello, sizeof hello);
    from->rank = sli_wire_read_hello(hello, ranks_of(listener));
    if (from->rank < 0 || listener->callers[from->rank].state != ABSENT) {
        forget(from);
        return;
    }
    from->state = PROVING;
    randombytes_buf(nonce, sizeof nonce);
    sli_wire_agree(&from->connection, listener->key, true, hello, nonce);
    if (!sli_wire_send_bytes(&from->connection, nonce, sizeof nonce) ||
        !sli_wire_send(&from->connection, &(sli_wire_message){.kind = SLI_WIRE_ALIVE}))
        forget(from);
}

static void let_in(sli_wire_listener *listener, caller *from, const char *host)
{
    int index = from->rank;
    caller *rank = &listener->callers[index];
    if (rank->state != ABSENT ||
        !sli_wire_send(&from->connection, &(sli_wire_message){.kind = SLI_WIRE_ALIVE})) {
        forget(from);
        return;
    }
    *rank = *from;
    rank->state = IN;
    from->state = ABSENT;
    from->connection.fd = -1;
    watch(listener, EPOLL_CTL_MOD, rank->connection.fd, (uint64_t)index);
    listener->options.called(listener->options.owner, index, host);
}

static void hear_unknown(sli_wire_listener *listener, caller *from)
{
    sli_wire_message proof;
    sli_wire_state state = SLI_WIRE_NOTHING;
    if (from->state == GREETING) {
        state = sli_wire_fill(&from->connection, SLI_WIRE_HELLO_BYTES);
        if (state == SLI_WIRE_MESSAGE)
            answer_hello(listener, from);
    }
    if (from->state == PROVING) {
        state = sli_wire_receive(&from->connection, &proof);
        if (state == SLI_WIRE_MESSAGE) {
            let_in(listener, from, proof.text);
            return;
        }
    }
    if (from->state != ABSENT && state != SLI_WIRE_NOTHING)
        forget(from);
}

/* ---- Ranks -------------------------------------------------------------------------------- */

static void hear_rank(sli_wire_listener *listener, caller *from, int rank)
{
    sli_wire_message message;
    while (from->state == IN) {
        sli_wire_state state = sli_wire_receive(&from->connection, &message);
        if (state == SLI_WIRE_NOTHING)
            return;
        if (state != SLI_WIRE_MESSAGE) {
            fail(listener, from, state);
            return;
        }
        from->heard = listener->clock.seconds;
        if (message.kind != SLI_WIRE_ALIVE)
            listener->options.said(listener->options.owner, rank, &message);
    }
}

static void hear(sli_wire_listener *listener, int index)
{
    caller *from = &listener->callers[index];
    if (index >= ranks_of(listener) && from->state != ABSENT) {
        int rank = from->rank;
        hear_unknown(listener, from);
        if (from->state != ABSENT || rank < 0)
            return;
        index = rank; /* what a rank said as soon as it was in is in the buffer already */
        from = &listener->callers[index];
    }
    if (index < ranks_of(listener) && from->state == IN)
        hear_rank(listener, from, index);
}

/* ---- Turns -------------------------------------------------------------------------------- */

static void tell_ends(sli_wire_listener *listener)
{
    for (int r = 0; r < ranks_of(listener) && listener->failing > 0; r++) {
        caller *rank = &listener->callers[r];
        if (rank->state != FAILING)
            continue;
        rank->state = GONE;
        listener->failing--;
        listener->options.ended(listener->options.owner, r, rank->why);
    }
}

static void check_times(sli_wire_listener *listener)
{
    double now = listener->clock.seconds, silent = listener->options.silent_seconds;
    if (now > listener->deaf_until)
        be_deaf(listener, false);
    for (int i = 0; i < ranks_of(listener) + listener->room; i++) {
        caller *one = &listener->callers[i];
        if (i >= ranks_of(listener) && one->state != ABSENT && now - one->heard > prove_seconds)
            forget(one);
        else if (one->state == IN && silent > 0 && now - one->heard > silent)
            fail(listener, one, SLI_WIRE_SILENT);
    }
    if (silent > 0 && now - listener->said_alive >= SLI_WIRE_ALIVE_SECONDS) {
        listener->said_alive = now;
        for (int r = 0; r < ranks_of(listener); r++)
            sli_wire_listener_send(listener, r, &(sli_wire_message){.kind = SLI_WIRE_ALIVE});
    }
}

bool sli_wire_listener_turn(sli_wire_listener *listener, int fd, double seconds)
{
    struct epoll_event events[EVENTS];
    double longest = seconds < SLI_WIRE_TURN_SECONDS ? seconds : SLI_WIRE_TURN_SECONDS;
    int limit = listener->failing > 0 ? 0 : (int)(1000 * longest);
    if (fd >= 0)
        watch(listener, EPOLL_CTL_ADD, fd, owner_event);
    int count = epoll_wait(listener->events, events, EVENTS, limit);
    if (fd >= 0)
        watch(listener, EPOLL_CTL_DEL, fd, owner_event);
    (void)sli_running_clock_read(&listener->clock, 2 * SLI_WIRE_TURN_SECONDS);
    bool calls = false;
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 == listener_event)
            calls = true;
        else if (events[i].data.u64 != owner_event)
            hear(listener, (int)events[i].data.u64);
    }
    if (calls && listener->fd >= 0)
        accept_calls(listener);
    check_times(listener);
    bool happened = count > 0 || listener->failing > 0;
    tell_ends(listener);
    return happened;
}

double sli_wire_listener_seconds(const sli_wire_listener *listener)
{
    return listener->clock.seconds;
}

void sli_wire_listener_send(sli_wire_listener *listener, int rank, const sli_wire_message *message)
{
    caller *to = &listener->callers[rank];
    if (to->state == IN && !sli_wire_send(&to->connection, message))
        fail(listener, to, SLI_WIRE_LOST);
}

void sli_wire_listener_refuse(sli_wire_listener *listener, int rank)
{
    fail(listener, &listener->callers[rank], SLI_WIRE_FALSE);
}

int sli_wire_listener_connected(const sli_wire_listener *listener)
{
    int count = 0;
    for (int r = 0; r < ranks_of(listener); r++)
        count += listener->callers[r].state == IN;
    return count;
}

void sli_wire_listener_hang_up(sli_wire_listener *listener)
{
    for (int i = 0; listener->callers && i < ranks_of(listener) + listener->room; i++) {
        sli_wire_close(&listener->callers[i].connection);
        listener->callers[i].state = i < ranks_of(listener) ? GONE : ABSENT;
    }
    listener->failing = 0;
    if (listener->fd >= 0)
        close(listener->fd);
    listener->fd = -1;
}

/* ---- Making ------------------------------------------------------------------------------- */

static sl_status start_listening(sli_wire_listener *listener, sli_wire_address *address)
{
    SL_TRY(sli_wire_address_open(listener->options.this_host, address, &listener->fd));
    listener->events = epoll_create1(EPOLL_CLOEXEC);
    if (listener->events < 0)
        return sl_error(SL_ERR_IO, "cannot listen for the ranks: %s", strerror(errno));
    watch(listener, EPOLL_CTL_ADD, listener->fd, listener_event);
    randombytes_buf(listener->key, sizeof listener->key);
    memcpy(address->key, listener->key, sizeof listener->key);
    return SL_OK;
}

sl_status sli_wire_listen(const sli_wire_listener_options *options, sli_wire_address *address,
                          sli_wire_listener **out)
{
    *out = NULL;
    *address = (sli_wire_address){.count = 0};
    long limit = sli_raise_descriptor_limit();
    if (limit < (long)options->ranks + SPARE_DESCRIPTORS)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%d ranks need as many open files at once and %d more, and this process "
                        "may open %ld: raise its limit (ulimit -Hn)",
                        options->ranks, SPARE_DESCRIPTORS, limit);
    if (sodium_init() < 0)
        return sl_error(SL_ERR_INTERNAL, "libsodium cannot be initialized");
    sli_wire_listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return sl_error(SL_ERR_MEMORY, "no memory to listen for %d ranks", options->ranks);
    *listener = (sli_wire_listener){.options = *options, .fd = -1, .events = -1};
    int count = 2 * options->ranks + SPARE_CALLERS;
    listener->callers = calloc((size_t)count, sizeof *listener->callers);
    sl_status status =
        listener->callers
            ? SL_OK
            : sl_error(SL_ERR_MEMORY, "no memory to listen for %d ranks", options->ranks);
    if (status == SL_OK) {
        listener->room = options->ranks + SPARE_CALLERS;
        for (int i = 0; i < count; i++)
            listener->callers[i] = (caller){.connection.fd = -1, .rank = -1};
        status = start_listening(listener, address);
    }
    if (status != SL_OK)
        sli_wire_listener_destroy(&listener);
    else
        (void)sli_running_clock_read(&listener->clock, 0);
    *out = listener;
    return status;
}

void sli_wire_listener_destroy(sli_wire_listener **listener)
{
    if (!*listener)
        return;
    sli_wire_listener_hang_up(*listener);
    if ((*listener)->events >= 0)
        close((*listener)->events);
    free((*listener)->callers);
    sodium_memzero((*listener)->key, sizeof(*listener)->key);
    free(*listener);
    *listener = NULL;
}
