/* The side of the wire (wire.h) that is called: by each rank of a job once, and perhaps by
 * processes that do not belong to the job.
 *
 * Those cannot keep ranks out. A caller has limited time to prove that it knows the key, and the
 * number of unproven callers is limited: beyond it the oldest one is closed, of those that have not
 * said hello if there are any. A rank whose call is closed in this way calls again. Callers that
 * have proved it have one entry for each rank. */
#ifndef SLI_COMM_WIRE_WIRE_LISTENER_H
#define SLI_COMM_WIRE_WIRE_LISTENER_H

#include "comm/wire/wire.h"

typedef struct sli_wire_listener sli_wire_listener;

typedef struct sli_wire_listener_options {
    int ranks, kinds; /* callers are ranks 0 … ranks - 1; messages are of kinds 0 … kinds - 1 */
    bool this_host;   /* all callers are on this host: listens on the loopback interface alone */
    double silent_seconds; /* a rank that has sent nothing for so long is lost; this side sends
                              ALIVE to all ranks twice a second. 0: neither, but ALIVE answers
                              every SLI_WIRE_ANSWER_MESSAGES messages of a rank */
    /* What happened to a rank; called by sli_wire_listener_turn, with `owner`. */
    void *owner;
    void (*called)(void *owner, int rank, const char *host);
    void (*said)(void *owner, int rank, const sli_wire_message *message);
    /* Once for each rank that has called; it cannot call again. */
    void (*ended)(void *owner, int rank, sli_wire_state why);
} sli_wire_listener_options;

/* The longest wait of a turn, and of every loop that watches the other side's silence. */
#define SLI_WIRE_TURN_SECONDS 0.25
/* How often each side says that it lives, where silence counts. */
#define SLI_WIRE_ALIVE_SECONDS 0.5

/* Listens on a free port, and raises this process's limit on open files to the hard one.
 * `*address` is for sli_wire_call. Errors: SL_ERR_IO, SL_ERR_MEMORY, and SL_ERR_UNSUPPORTED where
 * the limit on open files does not suffice for so many ranks. */
sl_status sli_wire_listen(const sli_wire_listener_options *options, sli_wire_address *address,
                          sli_wire_listener **out);

/* Hangs up and frees; NULL is allowed. */
void sli_wire_listener_destroy(sli_wire_listener **listener);

/* Waits until there is a call or a message, or `fd` (-1: none) can be read, but no longer than
 * `seconds` and SLI_WIRE_TURN_SECONDS, and handles it. False where nothing happened. */
bool sli_wire_listener_turn(sli_wire_listener *listener, int fd, double seconds);

/* Seconds that the listener has run, counted in turns (core/clock.h). */
double sli_wire_listener_seconds(const sli_wire_listener *listener);

/* Does nothing where the rank is not connected. Never waits: a rank that does not read its messages
 * is lost at the next turn. */
void sli_wire_listener_send(sli_wire_listener *listener, int rank, const sli_wire_message *message);

/* Hangs up on a rank that sent what it must not; `ended` follows with SLI_WIRE_INVALID. */
void sli_wire_listener_refuse(sli_wire_listener *listener, int rank);

/* How many ranks are connected. */
int sli_wire_listener_connected(const sli_wire_listener *listener);

/* Listens no more, and tells every rank that nothing more comes, which must not be sent to any
 * more. What they still say is read until they hang up. */
void sli_wire_listener_release(sli_wire_listener *listener);

/* Closes every connection without telling the owner, and listens no more. Turns then only wait. */
void sli_wire_listener_hang_up(sli_wire_listener *listener);

#endif
