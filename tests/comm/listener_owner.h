/* What tests of the listener have: its owner, ranks that call it on threads of their own, and
 * strangers. */
#ifndef TESTS_COMM_LISTENER_OWNER_H
#define TESTS_COMM_LISTENER_OWNER_H

#include "comm/wire/wire_listener.h"

#include <pthread.h>
#include <sys/types.h>

enum { KINDS = 4, HELLO = 1, MANY_RANKS = 1500, MOST_RANKS = 4096, PATIENCE_SECONDS = 60 };

/* What a listener's owner was told. */
typedef struct owner {
    sli_wire_listener *listener;
    sli_wire_address address;
    int called, said, ended, wrong;
    sli_wire_state why; /* of the last end */
    char name[64];      /* of the last caller */
    unsigned char in[MOST_RANKS];
} owner;

/* A listener for ranks of this host; the caller destroys it. */
void start(owner *self, int ranks, double silent_seconds);
/* Turns the listener until *count is `wanted`; fails after PATIENCE_SECONDS. */
void turn_until(owner *self, const int *count, int wanted);

typedef struct rank_call {
    pthread_t thread;
    const sli_wire_address *to;
    int rank, ranks;
    sl_status status;
    sli_wire_connection connection;
} rank_call;

void start_call(rank_call *self, const owner *listener, int rank, int ranks);
void end_call(rank_call *self);

/* The descriptor of a connection that says nothing. */
int open_stranger(const owner *listener);

/* As fork; the child goes with its parent, and what it asserts in vain ends it. */
pid_t start_child(void);

#endif
