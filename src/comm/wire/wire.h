/* Messages over TCP between the processes of one job: a listener (wire_listener.h) and the ranks
 * that call it. Used by the launcher and by the watch over ranks (comm/mpi).
 *
 * Both sides know a secret key, which is never sent. Each side of a connection sends a stream of
 * libsodium's crypto_secretstream, with a key of its own (wire.c): a process without the job's key
 * can neither join nor read, wherever it sits between the two, and a message that it alters, drops,
 * repeats or moves ends the connection.
 *
 * Numbers from the network are checked when a message is received, and nowhere else: see
 * sli_wire_message. */
#ifndef SLI_COMM_WIRE_WIRE_H
#define SLI_COMM_WIRE_WIRE_H

#include "core/host.h"
#include "sluice/status.h"

#include <netinet/in.h>
#include <sodium.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Addresses (wire_address.c) ----------------------------------------------------------- */

enum {
    SLI_WIRE_KEY_BYTES = 32,
    SLI_WIRE_MAX_ADDRESSES = 16,
    SLI_WIRE_ADDRESS_BYTES = 1024 /* of the text */
};

typedef union sli_wire_socket_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} sli_wire_socket_address;

typedef struct sli_wire_address {
    unsigned char key[SLI_WIRE_KEY_BYTES]; /* secret: known to the job's processes alone */
    char host[SLI_HOST_ID_BYTES];          /* the listener's sli_host_id */
    int count;
    sli_wire_socket_address at[SLI_WIRE_MAX_ADDRESSES]; /* with the port, all the same */
} sli_wire_address;

/* Writes "KEY,HOST,PORT,ADDRESS,…", one word for an environment variable or for MPI to hand around.
 * A process that has it belongs to the job. */
void sli_wire_address_print(const sli_wire_address *address, char text[SLI_WIRE_ADDRESS_BYTES]);

/* Errors: SL_ERR_FORMAT. */
sl_status sli_wire_address_parse(const char *text, sli_wire_address *out);

/* Fills in the loopback address and, unless `this_host`, those of the other interfaces that are up,
 * all with `port`. Errors: SL_ERR_IO. */
sl_status sli_wire_address_find(sli_wire_address *address, int family, int port, bool this_host);

/* Listens on a free port, of the loopback interface alone for `this_host`, and fills in all but the
 * key. `*fd` never waits; -1, or open, after an error. Errors: SL_ERR_IO. */
sl_status sli_wire_address_open(bool this_host, sli_wire_address *out, int *fd);

/* Whether the address can be called from `host`: a loopback address leads to a process of the
 * caller's own host. */
bool sli_wire_address_is_reachable(const sli_wire_address *address, int index, const char *host);

/* The size of a socket address, for the system's calls. */
socklen_t sli_wire_socket_address_bytes(const sli_wire_socket_address *address);

/* "10.0.0.1"; `text` has room for INET6_ADDRSTRLEN bytes. */
const char *sli_wire_socket_address_text(const sli_wire_socket_address *address, char *text);

/* ---- Messages ----------------------------------------------------------------------------- */

enum { SLI_WIRE_TEXT_BYTES = 2048 };

/* Travels as it is here, without the end of `text` from its 0 on. Every received message has been
 * checked against the ranges given here. */
typedef struct sli_wire_message {
    int32_t kind;       /* 0 (SLI_WIRE_ALIVE) … kinds - 1, which the two sides agree on */
    int32_t rank, size; /* a rank, 0 … size - 1, of a group of 1 … ranks; 0, 0: it names none */
    int32_t number;     /* any value: must not be used as an index */
    uint64_t group, sequence;
    double seconds;                 /* finite and not negative */
    char text[SLI_WIRE_TEXT_BYTES]; /* ends with its only 0 */
} sli_wire_message;

enum {
    SLI_WIRE_FIXED_BYTES = offsetof(sli_wire_message, text), /* of a message without its text */
    SLI_WIRE_MOST_BYTES = SLI_WIRE_FIXED_BYTES + SLI_WIRE_TEXT_BYTES - 1,
    SLI_WIRE_HEADER_BYTES = crypto_secretstream_xchacha20poly1305_HEADERBYTES, /* of a stream */
    SLI_WIRE_SEAL_BYTES = crypto_secretstream_xchacha20poly1305_ABYTES,        /* of a message */
    SLI_WIRE_FRAME_BYTES = SLI_WIRE_HEADER_BYTES + 4 + SLI_WIRE_MOST_BYTES + SLI_WIRE_SEAL_BYTES
};

/* The kind that only says that the sender lives. */
enum { SLI_WIRE_ALIVE };

/* How many messages of a rank the listener answers with one ALIVE. */
enum { SLI_WIRE_ANSWER_MESSAGES = 64 };

typedef enum sli_wire_state {
    SLI_WIRE_MESSAGE,
    SLI_WIRE_NOTHING, /* no whole message has come yet */
    SLI_WIRE_CLOSED,  /* the other side has hung up, or its process has died */
    SLI_WIRE_LOST,    /* its host does not answer, or its process has stopped reading */
    SLI_WIRE_SILENT,  /* it has not said that it lives for too long */
    SLI_WIRE_INVALID  /* it sent what no process of the job sends */
} sli_wire_state;

/* What each state but the first two says about a rank, for an error's sentence: "died". */
const char *sli_wire_state_text(sli_wire_state state);

/* One end of a connection. */
typedef struct sli_wire_connection {
    int fd;               /* -1: closed */
    int ranks, kinds;     /* the limits of what is received */
    bool sends, receives; /* the stream has begun */
    unsigned char send_key[SLI_WIRE_KEY_BYTES], receive_key[SLI_WIRE_KEY_BYTES];
    crypto_secretstream_xchacha20poly1305_state send_state, receive_state;
    size_t used; /* bytes in `buffer` */
    unsigned char buffer[SLI_WIRE_FRAME_BYTES];
} sli_wire_connection;

typedef struct sli_wire_call_options {
    int rank;         /* the caller's */
    int ranks, kinds; /* as the listener's */
    const char *host; /* where the caller runs, for errors and for the listener; "": not said */
    const char *whom; /* for errors: "rank 0" */
    double seconds;   /* until which it is tried again */
} sli_wire_call_options;

/* Calls the listener at one of its addresses after the other, again and again until the time is
 * over; gives up at once where the network says that no process listens. Waits until the listener
 * has admitted this rank. Errors: SL_ERR_IO names the last address tried and what happened there.
 */
sl_status sli_wire_call(const sli_wire_address *address, const sli_wire_call_options *options,
                        sli_wire_connection *out);

/* Never waits. False where the connection is broken, or its other end has stopped reading: it can
 * then only be closed. */
bool sli_wire_send(sli_wire_connection *connection, const sli_wire_message *message);

/* Gives the next message, if it has come as a whole. Never waits. */
sli_wire_state sli_wire_receive(sli_wire_connection *connection, sli_wire_message *out);

/* Does nothing where it is closed. */
void sli_wire_close(sli_wire_connection *connection);

/* ---- For the two sides' handshakes, and tests --------------------------------------------- */

/* The only function that checks what comes from the network: whether `bytes` bytes, the rest zeros,
 * are as sli_wire_message says. */
bool sli_wire_message_is_valid(const sli_wire_message *message, size_t bytes, int ranks, int kinds);

enum { SLI_WIRE_NONCE_BYTES = 32 };

/* The caller's first bytes. */
typedef struct sli_wire_hello {
    char protocol[8];
    int32_t rank;
    unsigned char nonce[SLI_WIRE_NONCE_BYTES];
} sli_wire_hello;

/* With a fresh nonce. */
sli_wire_hello sli_wire_hello_of(int rank);

/* The rank that a hello names; -1 where it is none, or no rank below `ranks`. */
int sli_wire_hello_rank(const sli_wire_hello *hello, int ranks);

/* Both sides' keys of this connection, from the job's key and what the two have said. */
void sli_wire_derive_keys(sli_wire_connection *connection,
                          const unsigned char key[SLI_WIRE_KEY_BYTES], bool is_listener,
                          const sli_wire_hello *hello,
                          const unsigned char nonce[SLI_WIRE_NONCE_BYTES]);

/* SLI_WIRE_MESSAGE when at least `count` bytes are in the connection's buffer. */
sli_wire_state sli_wire_fill(sli_wire_connection *connection, size_t count);

/* Moves bytes from the front of the buffer. */
void sli_wire_read_bytes(sli_wire_connection *connection, void *out, size_t count);

bool sli_wire_send_bytes(const sli_wire_connection *connection, const void *bytes, size_t count);

/* Sets up a connected socket: messages leave at once, and the loss of the host is noticed. */
void sli_wire_set_socket_options(int fd);

#endif
