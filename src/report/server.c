/* Requests are answered, and never written anywhere.
 *
 *     GET /         the page
 *     GET /events   server-sent events: the newest event at once, and each later one
 *
 * At an address of the loopback any process of this host may ask. Against DNS rebinding, by which a
 * page of another site reads from there, the request's Host must name the loopback. At any other
 * address the request must have the token. */
#include "report/server.h"

#include "core/error.h"

#include <stdlib.h>

#ifdef SLI_HAVE_MICROHTTPD

#include "core/clock.h"
#include "report/server_address.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 256, CONNECTION_BYTES = 32 << 10, SILENT_SECONDS = 30 };
enum { FREE_CONNECTIONS = 32 };        /* of the most, for those that come */
enum { MOST_HELD_BYTES = 64 << 20 };   /* of old events that are still being read, or one of them */
static const double ping_seconds = 10; /* a comment finds out which browsers have gone */

/* A text that several connections read. */
typedef struct event {
    char *bytes;
    size_t count;
    int references; /* of connections and the server */
    uint64_t number;
} event;

/* A connection. */
typedef struct client {
    struct MHD_Connection *connection;
    struct subscriber *subscriber; /* NULL: it gets no events */
    bool has_asked, dropped;       /* for what there is; it is being closed */
    struct client *next, **previous;
} client;

/* A connection that gets events. */
typedef struct subscriber {
    struct sli_server *server;
    client *client;
    event *current;         /* under way; NULL: none */
    size_t done;            /* bytes of it */
    uint64_t number, pings; /* of the server's, how many were read */
    bool suspended;
    struct subscriber *next, **previous; /* of the server's list; the pointer that leads here */
} subscriber;

struct sli_server {
    struct MHD_Daemon *daemon;
    char token[SLI_SERVER_KEY_BYTES], nonce[SLI_SERVER_KEY_BYTES];
    bool asks_token, ends;
    char url[SLI_SERVER_ADDRESS_BYTES + 2 * SLI_SERVER_KEY_BYTES];
    char policy[160];
    char *page;
    size_t page_bytes;
    event *newest;          /* sent last; NULL: none yet */
    size_t held_bytes;      /* of all events */
    uint64_t number, pings; /* of events, and of comments between them */
    double sent;            /* when the last of these came */
    subscriber *subscribers;
    client *clients, **last_client; /* in the order in which they came */
    int client_count;               /* without those that are being closed */
};

/* ---- Events -------------------------------------------------------------------------------- */

static void release_event(sli_server *server, event **held)
{
    event *released = *held;
    *held = NULL;
    if (!released || --released->references > 0)
        return;
    server->held_bytes -= released->count;
    free(released->bytes);
    free(released);
}

/* What is left of the event under way, or the newest one; none of both: 0. */
static size_t read_text(subscriber *self, char *text, size_t most)
{
    sli_server *server = self->server;
    if (self->current && self->done == self->current->count)
        release_event(server, &self->current);
    if (!self->current && self->number == server->number)
        return 0;
    if (!self->current) {
        self->current = server->newest;
        self->current->references++;
        self->done = 0;
        self->number = server->number;
    }
    size_t left = self->current->count - self->done, bytes = left < most ? left : most;
    memcpy(text, self->current->bytes + self->done, bytes);
    self->done += bytes;
    return bytes;
}

static ssize_t read_event(void *context, uint64_t position, char *text, size_t most)
{
    static const char comment[] = ":\n\n";
    subscriber *self = context;
    (void)position;
    if (self->client->dropped)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t bytes = read_text(self, text, most);
    if (bytes > 0)
        return (ssize_t)bytes;
    if (self->server->ends)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (self->pings != self->server->pings && most >= sizeof comment) {
        self->pings = self->server->pings;
        memcpy(text, comment, sizeof comment - 1);
        return sizeof comment - 1;
    }
    self->suspended = true;
    MHD_suspend_connection(self->client->connection);
    return 0;
}

static void end_subscriber(void *context)
{
    subscriber *self = context;
    release_event(self->server, &self->current);
    if (self->client)
        self->client->subscriber = NULL;
    *self->previous = self->next;
    if (self->next)
        self->next->previous = self->previous;
    free(self);
}

static void resume_subscriber(subscriber *self)
{
    if (self->suspended)
        MHD_resume_connection(self->client->connection);
    self->suspended = false;
}

static void resume_subscribers(sli_server *server)
{
    for (subscriber *each = server->subscribers; each; each = each->next)
        resume_subscriber(each);
}

/* ---- Connections --------------------------------------------------------------------------- */

/* The daemon closes it when it finds its socket shut down. */
static void drop_client(sli_server *server, client *self)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(self->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info)
        (void)shutdown(info->connect_fd, SHUT_RDWR);
    self->dropped = true;
    server->client_count--;
    if (self->subscriber)
        resume_subscriber(self->subscriber);
}

/* Who says nothing must not keep others out: the oldest of those goes first, else the oldest of
 * all. A browser connects again. */
static void make_room(sli_server *server)
{
    client *oldest = NULL;
    for (client *each = server->clients; each; each = each->next)
        if (!each->dropped && (!oldest || (oldest->has_asked && !each->has_asked)))
            oldest = each;
    if (oldest)
        drop_client(server, oldest);
}

static void add_client(sli_server *server, struct MHD_Connection *connection, void **context)
{
    client *self = calloc(1, sizeof *self);
    *context = self;
    if (!self)
        return; /* its request is refused */
    *self = (client){.connection = connection, .previous = server->last_client};
    *server->last_client = self;
    server->last_client = &self->next;
    if (++server->client_count > MOST_CONNECTIONS - FREE_CONNECTIONS)
        make_room(server);
}

static void remove_client(sli_server *server, client *self)
{
    *self->previous = self->next;
    if (self->next)
        self->next->previous = self->previous;
    else
        server->last_client = self->previous;
    server->client_count -= !self->dropped;
    if (self->subscriber)
        self->subscriber->client = NULL; /* its end comes next */
    free(self);
}

static void follow_connection(void *context, struct MHD_Connection *connection, void **connected,
                              enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        add_client(context, connection, connected);
    else if (*connected)
        remove_client(context, *connected);
}

static client *client_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* ---- What is sent -------------------------------------------------------------------------- */

/* A browser that reads slowly keeps the event that it reads; those that are too slow are dropped,
 * the ones that read the oldest events first. */
static void bound_held_events(sli_server *server)
{
    for (;;) {
        subscriber *oldest = NULL;
        for (subscriber *each = server->subscribers; each; each = each->next)
            if (each->current && each->current != server->newest &&
                (!oldest || each->current->number < oldest->current->number))
                oldest = each;
        size_t bytes = server->held_bytes - server->newest->count;
        if (!oldest || bytes <= MOST_HELD_BYTES || bytes == oldest->current->count)
            return;
        release_event(server, &oldest->current);
        drop_client(server, oldest->client);
    }
}

void sli_server_publish(sli_server *server, char *text, size_t bytes)
{
    event *next = malloc(sizeof *next);
    if (!next) {
        free(text);
        return; /* the pages stay as they are */
    }
    release_event(server, &server->newest);
    *next = (event){text, bytes, 1, ++server->number};
    server->newest = next;
    server->held_bytes += bytes;
    server->sent = sli_clock_seconds();
    bound_held_events(server);
    resume_subscribers(server);
}

static void send_ping(sli_server *server)
{
    if (sli_clock_seconds() - server->sent < ping_seconds)
        return;
    server->pings++;
    server->sent = sli_clock_seconds();
    resume_subscribers(server);
}

/* ---- Answers ------------------------------------------------------------------------------ */

static enum MHD_Result send_response(const sli_server *server, struct MHD_Connection *connection,
                                     unsigned status, const char *type,
                                     struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Content-Security-Policy", server->policy);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    enum MHD_Result queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result send_text(const sli_server *server, struct MHD_Connection *connection,
                                 unsigned status, const char *words)
{
    return send_response(server, connection, status, "text/plain; charset=utf-8",
                         MHD_create_response_from_buffer(strlen(words), (void *)words,
                                                         MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result send_events(sli_server *server, struct MHD_Connection *connection)
{
    client *receiver = client_of(connection);
    subscriber *self = receiver ? malloc(sizeof *self) : NULL;
    if (!self)
        return MHD_NO;
    *self = (subscriber){.server = server,
                         .client = receiver,
                         .pings = server->pings,
                         .next = server->subscribers,
                         .previous = &server->subscribers};
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CONNECTION_BYTES / 2, read_event, self,
                                          end_subscriber);
    if (!response) {
        free(self);
        return MHD_NO;
    }
    if (self->next)
        self->next->previous = &self->next;
    server->subscribers = receiver->subscriber = self;
    return send_response(server, connection, MHD_HTTP_OK, "text/event-stream", response);
}

/* "localhost", an address of 127/8 or "[::1]", with or without a port */
static bool is_loopback_host(const char *host)
{
    struct in_addr address;
    char name[64];
    if (!host)
        return true; /* HTTP/1.0: no browser */
    size_t length = strcspn(host, host[0] == '[' ? "]" : ":");
    if (host[0] == '[' && host[length++] != ']')
        return false;
    if (length >= sizeof name || (host[length] && host[length] != ':'))
        return false;
    snprintf(name, sizeof name, "%.*s", (int)length, host);
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

static bool has_token(const sli_server *server, struct MHD_Connection *connection)
{
    const char *given = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "token");
    return given && strlen(given) == sizeof server->token - 1 &&
           sodium_memcmp(given, server->token, sizeof server->token - 1) == 0;
}

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **request)
{
    static int known; /* its address marks a request whose head was seen */
    sli_server *server = context;
    (void)version;
    (void)upload;
    if (!*request) {
        *request = &known;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *upload_bytes = 0; /* what comes with a request is not used */
        return MHD_YES;
    }
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    if (server->asks_token ? !has_token(server, connection) : !is_loopback_host(host))
        return send_text(server, connection, MHD_HTTP_FORBIDDEN,
                         "Open the URL that sluice printed.\n");
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_text(server, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "Only GET is allowed.\n");
    client *requester = client_of(connection);
    if (requester)
        requester->has_asked = true;
    if (strcmp(path, "/events") == 0)
        return send_events(server, connection);
    if (strcmp(path, "/") != 0)
        return send_text(server, connection, MHD_HTTP_NOT_FOUND, "There is no such page.\n");
    return send_response(server, connection, MHD_HTTP_OK, "text/html; charset=utf-8",
                         MHD_create_response_from_buffer(server->page_bytes, server->page,
                                                         MHD_RESPMEM_MUST_COPY));
}

/* ---- All ---------------------------------------------------------------------------------- */

static void draw_key(char key[SLI_SERVER_KEY_BYTES])
{
    unsigned char bits[(SLI_SERVER_KEY_BYTES - 1) / 2];
    randombytes_buf(bits, sizeof bits);
    sodium_bin2hex(key, SLI_SERVER_KEY_BYTES, bits, sizeof bits);
}

static sl_status start_daemon(sli_server *server, int fd)
{
    server->daemon =
        MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, answer, server,
                         MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)MOST_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)SILENT_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)CONNECTION_BYTES, MHD_OPTION_NOTIFY_CONNECTION, follow_connection,
                         server, MHD_OPTION_END);
    if (server->daemon) /* which closes the socket, also after an error */
        return SL_OK;
    return sl_error(SL_ERR_IO, "the page's server cannot be started");
}

sl_status sli_server_create(const char *address, sli_server **out)
{
    char shown[SLI_SERVER_ADDRESS_BYTES];
    bool loopback;
    int fd;
    *out = NULL;
    if (sodium_init() < 0)
        return sl_error(SL_ERR_INTERNAL, "libsodium cannot be started");
    SL_TRY(sli_server_listen(address, &fd, shown, &loopback));
    sli_server *server = calloc(1, sizeof *server);
    if (!server) {
        close(fd);
        return sli_no_memory(NULL, "the page's server");
    }
    server->last_client = &server->clients;
    draw_key(server->token);
    draw_key(server->nonce);
    server->asks_token = !loopback;
    snprintf(server->url, sizeof server->url, "http://%s/%s%s", shown,
             server->asks_token ? "?token=" : "", server->asks_token ? server->token : "");
    snprintf(server->policy, sizeof server->policy,
             "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-%s'; "
             "connect-src 'self'; frame-ancestors 'none'",
             server->nonce);
    sl_status status;
    SL_TRY_OR_FAIL(start_daemon(server, fd));
    *out = server;
    return SL_OK;
fail:
    free(server);
    return status;
}

const char *sli_server_url(const sli_server *server)
{
    return server->url;
}

const char *sli_server_nonce(const sli_server *server)
{
    return server->nonce;
}

void sli_server_set_page(sli_server *server, char *page, size_t bytes)
{
    free(server->page);
    server->page = page;
    server->page_bytes = bytes;
}

void sli_server_turn(sli_server *server, double seconds)
{
    send_ping(server);
    (void)MHD_run_wait(server->daemon, (int32_t)(1e3 * seconds));
}

void sli_server_destroy(sli_server **server, double seconds)
{
    sli_server *self = server ? *server : NULL;
    if (!self)
        return;
    double end = sli_clock_seconds() + seconds;
    self->ends = true;
    resume_subscribers(self);
    while (self->subscribers && sli_clock_seconds() < end)
        (void)MHD_run_wait(self->daemon, 10);
    MHD_stop_daemon(self->daemon);
    release_event(self, &self->newest);
    free(self->page);
    free(self);
    *server = NULL;
}

#else

sl_status sli_server_create(const char *address, sli_server **out)
{
    (void)address;
    *out = NULL;
    return sl_error(SL_ERR_UNSUPPORTED,
                    "this build of sluice has no web server: it was built without libmicrohttpd");
}

/* There is no server to call them with. */
const char *sli_server_url(const sli_server *server)
{
    (void)server;
    return "";
}

const char *sli_server_nonce(const sli_server *server)
{
    return sli_server_url(server);
}

void sli_server_set_page(sli_server *server, char *page, size_t bytes)
{
    (void)server;
    (void)bytes;
    free(page);
}

void sli_server_publish(sli_server *server, char *text, size_t bytes)
{
    sli_server_set_page(server, text, bytes);
}

void sli_server_turn(sli_server *server, double seconds)
{
    (void)server;
    (void)seconds;
}

void sli_server_destroy(sli_server **server, double seconds)
{
    (void)server;
    (void)seconds;
}

#endif
