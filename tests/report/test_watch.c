#define _GNU_SOURCE /* unshare, memmem */
#include "core/clock.h"
#include "report/server.h"
#include "report/watch.h"
#include "train/small_run.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static const char log_lines[] =
    "{\"record\":\"run\",\"batches_per_epoch\":4,\"epochs\":2,\"model\":{}}\n"
    "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"loss\":4,\"ms\":10}\n"
    "{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,\"loss\":3,\"ms\":10}\n";

/* ---- A page ------------------------------------------------------------------------------- */

/* A log that a thread watches, as a process does. */
typedef struct page {
    sli_watch *watch;
    const char *url;
    pthread_t thread;
    atomic_bool ends;
} page;

static void *turn(void *context)
{
    page *served = context;
    while (!atomic_load(&served->ends))
        sli_watch_turn(served->watch);
    return NULL;
}

static void complain(void *context, const char *reason)
{
    fail_msg("%s", reason);
}

static sl_status open_watch(const char *address, const char *log, sli_watch **out)
{
    return sli_watch_open(
        &(sli_watch_options){.log = log, .name = "<name>", .serve = address, .failed = complain},
        out);
}

static page *open_page(const char *address, const char *log)
{
    page *served = calloc(1, sizeof *served);
    assert_non_null(served);
    check_ok(open_watch(address, log, &served->watch));
    served->url = sli_watch_url(served->watch);
    assert_int_equal(pthread_create(&served->thread, NULL, turn, served), 0);
    return served;
}

static void close_page(page *served)
{
    atomic_store(&served->ends, true);
    assert_int_equal(pthread_join(served->thread, NULL), 0);
    sli_watch_close(&served->watch);
    assert_null(served->watch);
    free(served);
}

/* ---- A browser ---------------------------------------------------------------------------- */

static int port_of(const char *url)
{
    const char *colon = strrchr(url, ':');
    assert_non_null(colon);
    return atoi(colon + 1);
}

/* Reading gives up after 20 s. The system holds at most about `room` bytes that are not read; 0:
 * as many as it likes. */
static int connect_to(const char *url, int room)
{
    struct timeval limit = {.tv_sec = 20};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port_of(url)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    if (room > 0)
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void send_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return; /* the answer came before the end */
        assert_true(sent > 0);
        bytes += sent;
        count -= (size_t)sent;
    }
}

/* Until the text comes, the other side ends the connection, or 20 s are over; returns whether it
 * came. */
static bool read_until(int fd, const char *text, char *to, size_t room)
{
    size_t used = 0;
    double end = sli_clock_seconds() + 20;
    to[0] = '\0';
    while (!strstr(to, text)) {
        if (used + 1 == room) { /* the last quarter may have its beginning */
            memmove(to, to + room - room / 4, room / 4);
            used = room / 4 - 1;
        }
        ssize_t got = recv(fd, to + used, room - used - 1, 0);
        if (got <= 0 || sli_clock_seconds() > end)
            return false;
        used += (size_t)got;
        to[used] = '\0';
    }
    return true;
}

/* Asks, with "Connection: close", for what `line` says, and gives the whole answer. */
static void ask(const page *served, const char *line, const char *host, char *to, size_t room)
{
    char request[512];
    int fd = connect_to(served->url, 0);
    int bytes = snprintf(request, sizeof request,
                         "%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", line, host);
    send_all(fd, request, (size_t)bytes);
    assert_false(read_until(fd, "\x01", to, room));
    close(fd);
}

static int open_events(const char *url, int room)
{
    static const char request[] = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    int fd = connect_to(url, room);
    send_all(fd, request, sizeof request - 1);
    return fd;
}

/* ---- Tests -------------------------------------------------------------------------------- */

static page *serve_log(scratch *dir, const char *lines)
{
    const char *path = scratch_path(dir, "log.jsonl");
    write_file(path, lines, strlen(lines));
    page *served = open_page("0", path);
    assert_memory_equal(served->url, "http://127.0.0.1:", 17);
    assert_null(strchr(served->url, '?'));
    return served;
}

static void add_line(scratch *dir, const char *line)
{
    FILE *file = fopen(scratch_path(dir, "log.jsonl"), "a");
    assert_non_null(file);
    assert_true(fputs(line, file) >= 0 && fclose(file) == 0);
}

static void page_shows_the_past_and_each_new_record(void **state)
{
    static char got[1 << 18];
    page *served = serve_log(*state, log_lines);
    ask(served, "GET /", "127.0.0.1:80", got, sizeof got);
    assert_memory_equal(got, "HTTP/1.1 200 OK\r\n", 17);
    assert_non_null(strstr(got, "script-src 'nonce-"));
    assert_non_null(strstr(got, "new EventSource('events' + location.search)"));
    int fd = open_events(served->url, 0);
    assert_true(read_until(fd, "step 2 of 8", got, sizeof got));
    assert_non_null(strstr(got, "Content-Type: text/event-stream"));
    assert_non_null(strstr(got, "data: <h1>&lt;name&gt;</h1>"));
    add_line(*state, "{\"record\":\"step\",\"epoch\":1,\"batch\":3,\"step\":3,\"loss\":2}\n{\"rec");
    assert_true(read_until(fd, "step 3 of 8. The run goes on.", got, sizeof got));
    add_line(*state, "ord\":\"end\",\"seconds\":9}\n");
    assert_true(read_until(fd, "The run has ended.", got, sizeof got));
    close(fd);
    close_page(served);
}

static void another_log_in_the_file_begins_again(void **state)
{
    static char got[1 << 18];
    page *served = serve_log(*state, log_lines);
    int fd = open_events(served->url, 0);
    assert_true(read_until(fd, "step 2 of 8", got, sizeof got));
    const char *path = scratch_path(*state, "log.jsonl");
    static const char as_long[] =
        "{\"record\":\"run\",\"batches_per_epoch\":5,\"epochs\":2,\"model\":{}}\n"
        "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"loss\":5,\"ms\":10}\n"
        "{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,\"loss\":4,\"ms\":10}\n";
    assert_int_equal(sizeof as_long, sizeof log_lines);
    write_file(path, as_long, sizeof as_long - 1);
    assert_true(read_until(fd, "step 2 of 10", got, sizeof got));
    static const char other[] =
        "{\"record\":\"run\",\"batches_per_epoch\":5,\"epochs\":1,\"model\":{}}\n";
    write_file(path, other, sizeof other - 1);
    assert_true(read_until(fd, "<p>The run goes on.</p>", got, sizeof got));
    add_line(*state, "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"loss\":4}\n");
    assert_true(read_until(fd, "step 1 of 5", got, sizeof got));
    add_line(*state, "{\"record\":7}\n");
    assert_true(read_until(fd, "A line of the log cannot be read: ", got, sizeof got));
    add_line(*state, "{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,\"loss\":4}\n");
    assert_true(read_until(fd, "step 2 of 5", got, sizeof got));
    write_file(path, as_long, sizeof as_long - 1);
    assert_true(read_until(fd, "step 2 of 10", got, sizeof got));
    add_line(*state, "{\"record\":\"step\",\"epoch\":1,\"batch\":3,\"step\":3,\"loss\":4}\n");
    assert_true(read_until(fd, "step 3 of 10", got, sizeof got));
    assert_null(strstr(got, "cannot be read"));
    close(fd);
    close_page(served);
}

/* Two replicas of two ranks, whose second waits for the first. In the second replica a tensor takes
 * 0.5 s from one to the other. */
static void steps_show_their_timeline_and_memory(void **state)
{
    static char got[1 << 18];
    static const int placement[] = {0, 1};
    static const double links[] = {0.5};
    const sl_schedule_options layouts[] = {
        {.ranks = 2, .virtual_stages = 1, .placement = placement},
        {.ranks = 2, .virtual_stages = 1, .placement = placement, .links = links}};
    static const sl_timeline_entry timelines[] = {{{.stage = 0, .kind = SL_ACTION_FORWARD}, 0, 1},
                                                  {{.stage = 0, .kind = SL_ACTION_BACKWARD}, 3, 4},
                                                  {{.stage = 1, .kind = SL_ACTION_FORWARD}, 1, 2},
                                                  {{.stage = 1, .kind = SL_ACTION_BACKWARD}, 2, 3},
                                                  {{.stage = 0, .kind = SL_ACTION_FORWARD}, 0, 1},
                                                  {{.stage = 0, .kind = SL_ACTION_BACKWARD}, 8, 9},
                                                  {{.stage = 1, .kind = SL_ACTION_FORWARD}, 1, 2},
                                                  {{.stage = 1, .kind = SL_ACTION_BACKWARD}, 2, 8}};
    const sl_rank_stats memory[4] = {
        [2] = {.rank = 1, .device = "cpu:2", .stats = {{0}, {1 << 20}, 0, 1 << 20, 0}},
        [3] = {.rank = 1, .stage = 1, .device = "cpu:3", .stats = {{0}, {3 << 20}, 0, 3 << 20, 0}}};
    const sl_stage_info stages[2] = {{.count = 1}, {.count = 1}};
    const sl_run_info info = {
        .stages = stages, .stage_count = 2, .replicas = 2, .ranks = memory, .rank_count = 4};
    sl_utilization own;
    check_ok(sl_timeline_utilization(timelines, 4, &layouts[0], &own));
    const sl_pipeline_info step = {
        .epoch = 1, .step = 2, .utilization = &own, .timelines = timelines, .layouts = layouts};
    sl_run_log *log;
    check_ok(sl_run_log_create(scratch_path(*state, "log.jsonl"), NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    check_ok(reporter.started(reporter.context, &info));
    check_ok(reporter.pipeline(reporter.context, &step));
    sl_run_log_destroy(&log);
    sl_utilization_clear(&own);
    page *served = open_page("0", scratch_path(*state, "log.jsonl"));
    int fd = open_events(served->url, 0);
    assert_true(read_until(fd, "</details>", got, sizeof got)); /* the event's end */
    assert_non_null(strstr(got, "measured: stage 1, backward of micro-batch 0: 1000 ms"));
    assert_non_null(strstr(got, "measured: stage 1, backward of micro-batch 0: 6000 ms"));
    assert_non_null(strstr(got, "Predicted: bubble 50.0%")); /* 4 of 2 * 4 s */
    assert_non_null(strstr(got, "Predicted: bubble 55.0%")); /* 11 of 2 * 10 s */
    assert_non_null(strstr(got, "3 MiB"));
    close(fd);
    close_page(served);
}

/* A browser that stops in the middle of an event gets that event, and then the newest: none of
 * those between is held for it. */
static void browser_that_hangs_misses_events(void **state)
{
    enum { EVENTS = 20, EVENT_BYTES = 1 << 20 }; /* more than the sockets hold */
    const double end = sli_clock_seconds() + 60; /* far longer than any machine takes */
    char name[32];
    sli_server *server;
    size_t used = 0, room = (EVENTS + 1) * (size_t)EVENT_BYTES;
    char *got = calloc(room, 1);
    assert_non_null(got);
    check_ok(sli_server_create("0", &server));
    int fd = open_events(sli_server_url(server), 1);
    for (int i = 1; i <= EVENTS; i++) {
        char *event = malloc(EVENT_BYTES);
        assert_non_null(event);
        memset(event, ' ', EVENT_BYTES);
        int length = snprintf(name, sizeof name, "event %d!", i);
        memcpy(event, name, (size_t)length);
        sli_server_publish(server, event, EVENT_BYTES);
        while (recv(fd, got, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) { /* none is under way */
            if (sli_clock_seconds() > end)
                fail_msg("event %d: the browser has got nothing within 60 s", i);
            sli_server_turn(server, 0.01);
        }
        sli_server_turn(server, 0);
    }
    snprintf(name, sizeof name, "event %d!", EVENTS);
    for (const char *last = got; !strstr(last, name);) {
        if (sli_clock_seconds() > end)
            fail_msg("the browser has not got the newest event within 60 s");
        sli_server_turn(server, 0);
        ssize_t bytes = recv(fd, got + used, room - used - 1, MSG_DONTWAIT);
        assert_true(bytes > 0 || (bytes < 0 && errno == EAGAIN));
        last = got + (used > sizeof name ? used - sizeof name : 0);
        used += bytes > 0 ? (size_t)bytes : 0;
    }
    for (int i = 1; i <= EVENTS; i++) {
        snprintf(name, sizeof name, "event %d!", i);
        assert_int_equal(strstr(got, name) != NULL, i == 1 || i == EVENTS);
    }
    free(got);
    close(fd);
    sli_server_destroy(&server, 0);
}

/* Who connects and says nothing is closed for others; who gets events goes on getting them. */
static void silent_connections_keep_no_one_out(void **state)
{
    enum { SILENT = 600 };
    static char got[1 << 18];
    int silent[SILENT];
    page *served = serve_log(*state, log_lines);
    int fd = open_events(served->url, 0);
    assert_true(read_until(fd, "step 2 of 8", got, sizeof got));
    for (int i = 0; i < SILENT; i++) {
        silent[i] = connect_to(served->url, 0);
        if (i % 200 == 199) {
            ask(served, "GET /", "localhost", got, sizeof got);
            assert_memory_equal(got, "HTTP/1.1 200 ", 13);
        }
    }
    add_line(*state, "{\"record\":\"step\",\"epoch\":1,\"batch\":3,\"step\":3,\"loss\":2}\n");
    assert_true(read_until(fd, "step 3 of 8. The run goes on.", got, sizeof got));
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    close(fd);
    close_page(served);
}

/* Serves until the other side has ended the connection, or `bytes` have come; returns how many
 * came. */
static size_t serve_bytes(sli_server *server, int fd, size_t bytes)
{
    static char got[1 << 20];
    size_t count = 0;
    double end = sli_clock_seconds() + 60;
    while (count < bytes) {
        assert_true(sli_clock_seconds() < end);
        sli_server_turn(server, 0);
        ssize_t now = recv(fd, got, sizeof got, MSG_DONTWAIT);
        if (now == 0 || (now < 0 && errno != EAGAIN))
            break;
        count += now > 0 ? (size_t)now : 0;
    }
    return count;
}

/* Each of them stops in the middle of another event. The server keeps 64 MiB of events for them. */
static void slow_browsers_hold_few_events(void **state)
{
    enum { BROWSERS = 8, EVENT_BYTES = 24 << 20, KEPT = 3 /* with the newest */ };
    sli_server *server;
    int fds[BROWSERS];
    char first;
    check_ok(sli_server_create("0", &server));
    for (int i = 0; i < BROWSERS; i++) {
        char *event = malloc(EVENT_BYTES);
        assert_non_null(event);
        memset(event, 'e', EVENT_BYTES);
        sli_server_publish(server, event, EVENT_BYTES);
        fds[i] = open_events(sli_server_url(server), 1);
        double end = sli_clock_seconds() + 60;
        while (recv(fds[i], &first, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) {
            assert_true(sli_clock_seconds() < end);
            sli_server_turn(server, 0.01);
        }
    }
    for (int i = 0; i < BROWSERS; i++) {
        size_t bytes = serve_bytes(server, fds[i], EVENT_BYTES);
        if ((bytes < EVENT_BYTES) != (i < BROWSERS - KEPT))
            fail_msg("browser %d of %d got %zu bytes", i, BROWSERS, bytes);
        close(fds[i]);
    }
    sli_server_destroy(&server, 0);
}

/* A log whose page has more bytes than the sockets hold: of a step with so many actions. */
static void write_large_log(scratch *dir)
{
    enum { MICROS = 2048 };
    FILE *file = fopen(scratch_path(dir, "log.jsonl"), "w");
    assert_non_null(file);
    fputs(log_lines, file);
    fputs("{\"record\":\"pipeline\",\"replica\":0,\"epoch\":1,\"step\":2,\"placement\":[0]", file);
    for (int kind = 0; kind < 2; kind++) {
        fprintf(file, ",\"%s\":[", kind == 0 ? "measured" : "predicted");
        for (int i = 0; i < 2 * MICROS; i++)
            fprintf(file, "%s[\"0%c%d\",%d,%d]", i > 0 ? "," : "", "FB"[i % 2], i / 2, i, i + 1);
        fputs("]", file);
    }
    fputs("}\n", file);
    assert_int_equal(fclose(file), 0);
}

/* Browsers that stop reading before a run begins, and one that reads until it ends. */
static void browsers_that_hang_hold_up_no_step(void **state)
{
    enum { HANGING = 20, STEPS = 4 };
    static char got[1 << 20];
    static small_record record;
    int hanging[HANGING];
    char path[512];
    sl_run_log *log;
    sl_run_result result;
    sl_train_options options = small_options(*state);
    options.report_timelines = true;
    write_large_log(*state);
    snprintf(path, sizeof path, "%s", scratch_path(*state, "log.jsonl"));
    page *served = open_page("0", path);
    for (int i = 0; i < HANGING; i++) {
        hanging[i] = open_events(served->url, 1);
        assert_int_equal(recv(hanging[i], got, 1, MSG_PEEK), 1); /* an event is under way */
    }
    int fd = open_events(served->url, 0);
    assert_true(read_until(fd, "step 2 of 8", got, sizeof got));
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    const sl_reporter reporters[] = {sl_run_log_reporter(log), small_reporter(&record)};
    check_ok(sl_train_run(&options, reporters, 2, &result));
    assert_int_equal(record.step_count, STEPS);
    assert_int_equal(record.finished, 1);
    assert_true(read_until(fd, "step 4 of 4. The run has ended.", got, sizeof got));
    close_page(served);
    sl_run_log_destroy(&log);
    for (int i = 0; i < HANGING; i++) {
        assert_false(read_until(hanging[i], "\n\n", got, sizeof got)); /* an event's end */
        close(hanging[i]);
    }
    close(fd);
}

static void bad_requests_are_answered(void **state)
{
    static char got[1 << 16], long_path[1 << 17];
    page *served = serve_log(*state, log_lines);
    static const struct {
        const char *line, *host, *answer;
    } cases[] = {
        {"GET /../../etc/passwd", "localhost", "HTTP/1.1 404 "},
        {"GET /%2e%2e/%2e%2e/etc/passwd", "localhost", "HTTP/1.1 404 "},
        {"GET /\x1b[31mred", "localhost", "HTTP/1.1 404 "},
        {"GET //", "localhost", "HTTP/1.1 404 "},
        {"POST /", "localhost", "HTTP/1.1 405 "},
        {"DELETE /events", "localhost", "HTTP/1.1 405 "},
        {"HEAD /", "[::1]:99", "HTTP/1.1 200 "},
        {"GET /", "site.example", "HTTP/1.1 403 "},
        {"GET /events", "127.0.0.1.site.example:80", "HTTP/1.1 403 "},
        {"GET /", "", "HTTP/1.1 403 "},
        {"GET /", "[::1", "HTTP/1.1 403 "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ask(served, cases[i].line, cases[i].host, got, sizeof got);
        assert_memory_equal(got, cases[i].answer, strlen(cases[i].answer));
    }
    memset(long_path, 'x', sizeof long_path);
    memcpy(long_path, "GET /", 5);
    static const char binary[] = "\x16\x03\x01\x02\x00\x01\x00\xff\xfe\r\n\r\n";
    const struct {
        const char *bytes;
        size_t count;
    } broken[] = {{long_path, sizeof long_path}, {binary, sizeof binary - 1}};
    for (size_t i = 0; i < 2; i++) {
        int fd = connect_to(served->url, 0);
        send_all(fd, broken[i].bytes, broken[i].count);
        shutdown(fd, SHUT_WR);
        (void)read_until(fd, "\x01", got, sizeof got);
        assert_null(strstr(got, " 200 "));
        close(fd);
    }
    ask(served, "GET /", "localhost", got, sizeof got);
    assert_memory_equal(got, "HTTP/1.1 200 ", 13);
    close_page(served);
}

static void what_cannot_be_served_is_refused(void **state)
{
    sli_watch *watch;
    const char *path = scratch_path(*state, "log.jsonl");
    check_error(open_watch("0", path, &watch), SL_ERR_NOT_FOUND, "log.jsonl");
    write_file(path, "{}\n", 3);
    check_error(open_watch("0", path, &watch), SL_ERR_FORMAT, "<name>: line 1");
    write_file(path, log_lines, sizeof log_lines - 1);
    static const char *const addresses[] = {"",   "x",      "65536", ":80",
                                            "-1", "::1:80", "80x",   "a:b:1"};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++)
        check_error(open_watch(addresses[i], path, &watch), SL_ERR_INVALID, "[ADDRESS:]PORT");
    page *first = serve_log(*state, log_lines);
    char taken[32];
    snprintf(taken, sizeof taken, "127.0.0.1:%d", port_of(first->url));
    check_error(open_watch(taken, path, &watch), SL_ERR_IO, "in use");
    close_page(first);
}

/* In a network namespace of the test's own, whose loopback begins unconnected. */
static bool enter_network(void)
{
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return false;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
    close(fd);
    return up;
}

/* The last test: those after it would be in its network. */
static void other_addresses_ask_for_a_token(void **state)
{
    static char got[1 << 18];
    char line[160];
    const char *path = scratch_path(*state, "log.jsonl");
    write_file(path, log_lines, sizeof log_lines - 1);
    if (!enter_network()) {
        print_message("skipped: the token: there is no network namespace: %s\n", strerror(errno));
        skip();
    }
    page *served = open_page("0.0.0.0:0", path);
    const char *token = strstr(served->url, "/?token=");
    assert_non_null(token);
    assert_int_equal(strlen(token), strlen("/?token=") + 32);
    snprintf(line, sizeof line, "GET %s", token);
    ask(served, line, "any.example", got, sizeof got);
    assert_memory_equal(got, "HTTP/1.1 200 ", 13);
    char *last = &line[strlen(line) - 1], kept = *last;
    *last = kept == '0' ? '1' : '0';
    ask(served, line, "localhost", got, sizeof got);
    assert_memory_equal(got, "HTTP/1.1 403 ", 13);
    *last = '\0';
    ask(served, line, "localhost", got, sizeof got);
    assert_memory_equal(got, "HTTP/1.1 403 ", 13);
    ask(served, "GET /events", "localhost", got, sizeof got);
    assert_memory_equal(got, "HTTP/1.1 403 ", 13);
    ask(served, "GET /events?token", "localhost", got, sizeof got);
    assert_memory_equal(got, "HTTP/1.1 403 ", 13);
    close_page(served);
}

int watch_tests(void)
{
    const struct CMUnitTest tests[] = {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
        IN_SCRATCH(page_shows_the_past_and_each_new_record),
        IN_SCRATCH(another_log_in_the_file_begins_again),
        IN_SCRATCH(steps_show_their_timeline_and_memory),
        IN_SCRATCH(browser_that_hangs_misses_events),
        IN_SCRATCH(silent_connections_keep_no_one_out),
        cmocka_unit_test(slow_browsers_hold_few_events),
        cmocka_unit_test_setup_teardown(browsers_that_hang_hold_up_no_step, small_corpus_create,
                                        scratch_remove),
        IN_SCRATCH(bad_requests_are_answered),
        IN_SCRATCH(what_cannot_be_served_is_refused),
        IN_SCRATCH(other_addresses_ask_for_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
