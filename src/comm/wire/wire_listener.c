#define _GNU_SOURCE /* accept4 */
#include "comm/wire/wire_listener.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* SPARE_…: unknown callers beyond one for each rank, and descriptors beyond those of callers. */
enum { SPARE_CALLERS = 64, SPARE_DESCRIPTORS = 32, EVENTS = 64 };
enum { CALLS_A_TURN = 64 };

static const double prove_seconds = 5;   /* for a caller to prove that it knows the key */
static const double pause_seconds = 0.1; /* in accepting, when no more files can be opened */

/* What epoll tells of: a caller's index, or one of these. */
static const uint64_t listener_event = UINT64_MAX, owner_event = UINT64_MAX - 1;

typedef enum caller_state {
    ABSENT,   /* no caller; of a rank: has not called */
    GREETING, /* has not said hello */
    PROVING,  /* has, and was answered */
    ADMITTED, /* a rank */
    FAILING,  /* a rank whose end its owner is to be told, `why` */
    GONE      /* a rank that has ended */
} caller_state;

typedef struct caller {
    sli_wire_connection connection;
    caller_state state;
    sli_wire_state why;
    int rank;          /* from PROVING on */
    double heard;      /* when, on the listener's clock */
    uint64_t messages; /* of a rank */
} caller;

struct sli_wire_listener {
    sli_wire_listener_options options;
    unsigned char key[SLI_WIRE_KEY_BYTES];
    int fd, events; /* -1: closed */
    sli_running_clock clock;
    double said_alive, pauses_until;
    bool pauses; /* accepting calls, as the limit on open files is reached */
    int room, failing;
    caller *callers; /* [ranks + room] by rank, then unknown ones */
};

/* ---- The table ---------------------------------------------------------------------------- */

static void set_polling(const sli_wire_listener *listener, int operation, int fd, uint64_t event)
{
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = event};
    (void)epoll_ctl(listener->events, operation, fd, &wanted);
}

static void close_unknown(caller *unknown)
{
    sli_wire_close(&unknown->connection);
    unknown->state = ABSENT;
}

/* The owner is told at the end of the turn: now it may be sending to all ranks. */
static void mark_failing(sli_wire_listener *listener, caller *rank, sli_wire_state why)
{
    if (rank->state != ADMITTED)
        return;
    sli_wire_close(&rank->connection);
    rank->state = FAILING;
    rank->why = why;
    listener->failing++;
}

/* The caller to close where there are too many: the oldest of those that have not said hello, which
 * a rank says at once, else the oldest of all. */
static caller *oldest_unknown(sli_wire_listener *listener)
{
    caller *oldest = NULL;
    for (int i = 0; i < listener->room; i++) {
        caller *one = &listener->callers[listener->options.ranks + i];
        if (one->state == ABSENT)
            continue;
        bool is_older = oldest && one->heard < oldest->heard;
        if (!oldest || one->state < oldest->state || (one->state == oldest->state && is_older))
            oldest = one;
    }
    return oldest;
}

/* A free entry for an unknown caller, if need be that of the oldest one. */
static caller *free_entry(sli_wire_listener *listener)
{
    for (int i = 0; i < listener->room; i++)
        if (listener->callers[listener->options.ranks + i].state == ABSENT)
            return &listener->callers[listener->options.ranks + i];
    caller *oldest = oldest_unknown(listener);
    close_unknown(oldest);
    return oldest;
}

/* ---- Calls -------------------------------------------------------------------------------- */

/* Each rank calls once: a second caller with its number is closed. */
static void answer_hello(sli_wire_listener *listener, caller *unknown)
{
    sli_wire_hello hello;
    unsigned char nonce[SLI_WIRE_NONCE_BYTES];
    sli_wire_read_bytes(&unknown->connection, &hello, sizeof hello);
    unknown->rank = sli_wire_hello_rank(&hello, listener->options.ranks);
    if (unknown->rank < 0 || listener->callers[unknown->rank].state != ABSENT) {
        close_unknown(unknown);
        return;
    }
    unknown->state = PROVING;
    randombytes_buf(nonce, sizeof nonce);
    sli_wire_derive_keys(&unknown->connection, listener->key, true, &hello, nonce);
    if (!sli_wire_send_bytes(&unknown->connection, nonce, sizeof nonce) ||
        !sli_wire_send(&unknown->connection, &(sli_wire_message){.kind = SLI_WIRE_ALIVE}))
        close_unknown(unknown);
}

static void admit_rank(sli_wire_listener *listener, caller *unknown, const char *host)
{
    int index = unknown->rank;
    caller *rank = &listener->callers[index];
    if (rank->state != ABSENT ||
        !sli_wire_send(&unknown->connection, &(sli_wire_message){.kind = SLI_WIRE_ALIVE})) {
        close_unknown(unknown);
        return;
    }
    *rank = *unknown;
    rank->state = ADMITTED;
    rank->heard = listener->clock.seconds;
    unknown->state = ABSENT;
    unknown->connection.fd = -1;
    set_polling(listener, EPOLL_CTL_MOD, rank->connection.fd, (uint64_t)index);
    listener->options.called(listener->options.owner, index, host);
}

static void read_unknown(sli_wire_listener *listener, caller *unknown)
{
    sli_wire_message proof;
    sli_wire_state state = SLI_WIRE_NOTHING;
    if (unknown->state == GREETING) {
        state = sli_wire_fill(&unknown->connection, sizeof(sli_wire_hello));
        if (state == SLI_WIRE_MESSAGE)
            answer_hello(listener, unknown);
    }
    if (unknown->state == PROVING) {
        state = sli_wire_receive(&unknown->connection, &proof);
        if (state == SLI_WIRE_MESSAGE) {
            admit_rank(listener, unknown, proof.text);
            return;
        }
    }
    if (unknown->state != ABSENT && state != SLI_WIRE_NOTHING)
        close_unknown(unknown);
}

static void add_caller(sli_wire_listener *listener, int fd)
{
    caller *entry = free_entry(listener);
    sli_wire_set_socket_options(fd);
    *entry = (caller){.state = GREETING, .rank = -1, .heard = listener->clock.seconds};
    entry->connection = (sli_wire_connection){.fd = fd,
                                              .ranks = listener->options.ranks,
                                              .kinds = listener->options.kinds};
    set_polling(listener, EPOLL_CTL_ADD, fd, (uint64_t)(entry - listener->callers));
    read_unknown(listener, entry); /* before others make it the oldest that has said nothing */
}

static void pause_accepting(sli_wire_listener *listener, bool pause)
{
    if (listener->pauses == pause || listener->fd < 0)
        return;
    listener->pauses = pause;
    listener->pauses_until = listener->clock.seconds + pause_seconds;
    set_polling(listener, pause ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, listener->fd, listener_event);
}

/* Where no more files can be opened the oldest unknown caller is closed. Without one the calls wait
 * for a moment, for poll would report them again and again. */
static void accept_calls(sli_wire_listener *listener)
{
    for (int i = 0; i < CALLS_A_TURN; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        bool is_full =
            fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
        caller *oldest = is_full ? oldest_unknown(listener) : NULL;
        if (fd >= 0) {
            add_caller(listener, fd);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (oldest) {
            close_unknown(oldest);
        } else if (is_full) {
            pause_accepting(listener, true);
            return;
        }
    }
}

/* ---- Ranks -------------------------------------------------------------------------------- */

/* Tells a rank that its messages are read. One that has hung up may still be read: so a failure
 * does not count. */
static void answer_messages(const sli_wire_listener *listener, caller *sender)
{
    if (listener->options.silent_seconds <= 0 && ++sender->messages % SLI_WIRE_ANSWER_MESSAGES == 0)
        (void)sli_wire_send(&sender->connection, &(sli_wire_message){.kind = SLI_WIRE_ALIVE});
}

static void read_rank(sli_wire_listener *listener, caller *sender, int rank)
{
    sli_wire_message message;
    while (sender->state == ADMITTED) {
        sli_wire_state state = sli_wire_receive(&sender->connection, &message);
        if (state == SLI_WIRE_NOTHING)
            return;
        if (state != SLI_WIRE_MESSAGE) {
            mark_failing(listener, sender, state);
            return;
        }
        sender->heard = listener->clock.seconds;
        answer_messages(listener, sender);
        if (message.kind != SLI_WIRE_ALIVE)
            listener->options.said(listener->options.owner, rank, &message);
    }
}

static void read_caller(sli_wire_listener *listener, int index)
{
    caller *sender = &listener->callers[index];
    if (index >= listener->options.ranks && sender->state != ABSENT) {
        int rank = sender->rank;
        read_unknown(listener, sender);
        if (sender->state != ABSENT || rank < 0)
            return;
        index = rank; /* what the rank has sent since may be in the buffer already */
        sender = &listener->callers[index];
    }
    if (index < listener->options.ranks && sender->state == ADMITTED)
        read_rank(listener, sender, index);
}

/* ---- Turns -------------------------------------------------------------------------------- */

static void report_ends(sli_wire_listener *listener)
{
    for (int r = 0; r < listener->options.ranks && listener->failing > 0; r++) {
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
    if (now > listener->pauses_until)
        pause_accepting(listener, false);
    for (int i = 0; i < listener->options.ranks + listener->room; i++) {
        caller *one = &listener->callers[i];
        if (i >= listener->options.ranks && one->state != ABSENT &&
            now - one->heard > prove_seconds)
            close_unknown(one);
        else if (one->state == ADMITTED && silent > 0 && now - one->heard > silent)
            mark_failing(listener, one, SLI_WIRE_SILENT);
    }
    if (silent > 0 && now - listener->said_alive >= SLI_WIRE_ALIVE_SECONDS) {
        listener->said_alive = now;
        for (int r = 0; r < listener->options.ranks; r++)
            sli_wire_listener_send(listener, r, &(sli_wire_message){.kind = SLI_WIRE_ALIVE});
    }
}

bool sli_wire_listener_turn(sli_wire_listener *listener, int fd, double seconds)
{
    struct epoll_event events[EVENTS];
    double longest = seconds < SLI_WIRE_TURN_SECONDS ? seconds : SLI_WIRE_TURN_SECONDS;
    int limit = listener->failing > 0 ? 0 : (int)(1000 * longest);
    if (fd >= 0)
        set_polling(listener, EPOLL_CTL_ADD, fd, owner_event);
    int count = epoll_wait(listener->events, events, EVENTS, limit);
    if (fd >= 0)
        set_polling(listener, EPOLL_CTL_DEL, fd, owner_event);
    (void)sli_running_clock_read(&listener->clock, 2 * SLI_WIRE_TURN_SECONDS);
    bool calls = false;
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 == listener_event)
            calls = true;
        else if (events[i].data.u64 != owner_event)
            read_caller(listener, (int)events[i].data.u64);
    }
    if (calls && listener->fd >= 0)
        accept_calls(listener);
    check_times(listener);
    bool happened = count > 0 || listener->failing > 0;
    report_ends(listener);
    return happened;
}

double sli_wire_listener_seconds(const sli_wire_listener *listener)
{
    return listener->clock.seconds;
}

void sli_wire_listener_send(sli_wire_listener *listener, int rank, const sli_wire_message *message)
{
    caller *receiver = &listener->callers[rank];
    if (receiver->state == ADMITTED && !sli_wire_send(&receiver->connection, message))
        mark_failing(listener, receiver, SLI_WIRE_LOST);
}

void sli_wire_listener_refuse(sli_wire_listener *listener, int rank)
{
    mark_failing(listener, &listener->callers[rank], SLI_WIRE_INVALID);
}

int sli_wire_listener_connected(const sli_wire_listener *listener)
{
    int count = 0;
    for (int r = 0; r < listener->options.ranks; r++)
        count += listener->callers[r].state == ADMITTED;
    return count;
}

static void stop_listening(sli_wire_listener *listener)
{
    for (int i = 0; i < listener->room; i++)
        close_unknown(&listener->callers[listener->options.ranks + i]);
    if (listener->fd >= 0)
        close(listener->fd);
    listener->fd = -1;
}

void sli_wire_listener_release(sli_wire_listener *listener)
{
    stop_listening(listener);
    for (int r = 0; r < listener->options.ranks; r++)
        if (listener->callers[r].state == ADMITTED)
            (void)shutdown(listener->callers[r].connection.fd, SHUT_WR);
}

void sli_wire_listener_hang_up(sli_wire_listener *listener)
{
    stop_listening(listener);
    for (int r = 0; r < listener->options.ranks; r++) {
        sli_wire_close(&listener->callers[r].connection);
        listener->callers[r].state = GONE;
    }
    listener->failing = 0;
}

/* ---- Making ------------------------------------------------------------------------------- */

static sl_status start_listening(sli_wire_listener *listener, sli_wire_address *address)
{
    SL_TRY(sli_wire_address_open(listener->options.this_host, address, &listener->fd));
    listener->events = epoll_create1(EPOLL_CLOEXEC);
    if (listener->events < 0)
        return sl_error(SL_ERR_IO, "cannot listen for the ranks: %s", strerror(errno));
    set_polling(listener, EPOLL_CTL_ADD, listener->fd, listener_event);
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
    int count = 2 * options->ranks + SPARE_CALLERS;
    sli_wire_listener *listener = calloc(1, sizeof *listener);
    caller *callers = calloc((size_t)count, sizeof *callers);
    if (!listener || !callers) {
        free(listener);
        free(callers);
        return sli_no_memory(NULL, "a listener for %d ranks", options->ranks);
    }
    for (int i = 0; i < count; i++)
        callers[i] = (caller){.connection.fd = -1, .rank = -1};
    *listener = (sli_wire_listener){.options = *options,
                                    .fd = -1,
                                    .events = -1,
                                    .callers = callers,
                                    .room = count - options->ranks};
    (void)sli_running_clock_read(&listener->clock, 0);
    sl_status status = start_listening(listener, address);
    if (status != SL_OK)
        sli_wire_listener_destroy(&listener);
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
