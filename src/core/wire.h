/* Messages over TCP between the processes of one job: a listener (wire_listener.h) and the ranks
 * that call it. Used by the launcher and by the watch over ranks (comm/mpi).
 *
 * Both sides know a secret key, which is never sent. Each call begins with a handshake (wire.c) in
 * which both prove that they know it, and every message after it carries a proof of its own: a
 * process without the key can neither join nor insert a message, wherever it sits between the two.
 * Messages are not encrypted.
 *
 * Numbers from the network are checked when a message is received, and nowhere else: see
 * sli_wire_message. */
#ifndef SLI_CORE_WIRE_H
#define SLI_CORE_WIRE_H

#include "core/wire_address.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SLI_WIRE_TEXT_BYTES = 2048,
    SLI_WIRE_FIXED_BYTES = 40, /* of a message without its text */
    SLI_WIRE_TAG_BYTES = 16,
    SLI_WIRE_BODY_BYTES = SLI_WIRE_FIXED_BYTES + SLI_WIRE_TEXT_BYTES - 1,
    SLI_WIRE_FRAME_BYTES = 4 + SLI_WIRE_BODY_BYTES + SLI_WIRE_TAG_BYTES
};

/* A received message keeps to what is said here. */
typedef struct sli_wire_message {
    int32_t kind;       /* 0 (SLI_WIRE_ALIVE) … kinds - 1, which the two sides agree on */
    int32_t rank, size; /* a rank, 0 … size - 1, of a group of 1 … ranks; 0, 0: it names none */
    int32_t number;     /* any; never to be an index */
    uint64_t group, sequence;
    double seconds;                 /* finite and not negative */
    char text[SLI_WIRE_TEXT_BYTES]; /* ends with its only 0 */
} sli_wire_message;

/* The kind that only says that the sender lives. */
enum { SLI_WIRE_ALIVE };

typedef enum sli_wire_state {
    SLI_WIRE_MESSAGE,
    SLI_WIRE_NOTHING, /* has come as a whole yet */
    SLI_WIRE_CLOSED,  /* the other side has hung up, or its process has died */
    SLI_WIRE_LOST,    /* its host does not answer, or the other side takes nothing any more */
    SLI_WIRE_SILENT,  /* it has not said that it lives for too long */
    SLI_WIRE_FALSE    /* it sent what no process of the job sends */
} sli_wire_state;

/* "died", for an error's sentence about a rank: what each state but the first two says of it. */
const char *sli_wire_state_text(sli_wire_state state);

/* One end of a connection. */
typedef struct sli_wire_connection {
    int fd;                  /* -1: closed */
    int ranks, kinds;        /* the limits of what is received */
    uint64_t sent, received; /* messages */
    unsigned char send_key[SLI_WIRE_KEY_BYTES], receive_key[SLI_WIRE_KEY_BYTES];
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
 * over; at once gives up where the network says that nobody listens. Waits for the listener's
 * welcome. Errors: SL_ERR_IO names the last address tried and what happened there. */
sl_status sli_wire_call(const sli_wire_address *to, const sli_wire_call_options *options,
                        sli_wire_connection *out);

/* False where the connection is broken, or its other end takes nothing any more: it never waits.
 * Then the connection is of no more use. */
bool sli_wire_send(sli_wire_connection *connection, const sli_wire_message *message);

/* Takes the next message, if it has come as a whole. Never waits. */
sli_wire_state sli_wire_receive(sli_wire_connection *connection, sli_wire_message *out);

/* Does nothing where it is closed. */
void sli_wire_close(sli_wire_connection *connection);

/* ---- For the two sides' handshakes, and tests --------------------------------------------- */

/* A message as bytes, without the proof; gives their number. */
size_t sli_wire_encode(const sli_wire_message *message, unsigned char body[SLI_WIRE_BODY_BYTES]);

/* The one place where what comes from the network is checked: false where it is not as
 * sli_wire_message says. */
bool sli_wire_decode(const unsigned char *body, size_t bytes, int ranks, int kinds,
                     sli_wire_message *out);

enum {
    SLI_WIRE_NONCE_BYTES = 32,
    SLI_WIRE_HELLO_BYTES = 8 + 4 + SLI_WIRE_NONCE_BYTES /* which protocol, rank, nonce */
};

/* The caller's first bytes, with a fresh nonce. */
void sli_wire_write_hello(int rank, unsigned char hello[SLI_WIRE_HELLO_BYTES]);

/* The rank that a hello names; -1 where it is none, or no rank below `ranks`. */
int sli_wire_read_hello(const unsigned char hello[SLI_WIRE_HELLO_BYTES], int ranks);

/* Both sides' keys of this connection, from the job's key and what the two have said. */
void sli_wire_agree(sli_wire_connection *connection, const unsigned char key[SLI_WIRE_KEY_BYTES],
                    bool is_listener, const unsigned char hello[SLI_WIRE_HELLO_BYTES],
                    const unsigned char nonce[SLI_WIRE_NONCE_BYTES]);

/* SLI_WIRE_MESSAGE when at least `count` bytes are in the connection's buffer. */
sli_wire_state sli_wire_fill(sli_wire_connection *connection, size_t count);

/* Takes bytes off the front of the buffer. */
void sli_wire_take(sli_wire_connection *connection, void *to, size_t count);

bool sli_wire_send_bytes(const sli_wire_connection *connection, const void *bytes, size_t count);

/* Prepares a connected socket: messages leave at once, and a host that is gone is noticed. */
void sli_wire_prepare(int fd);

#endif
