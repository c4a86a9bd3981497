/* A group's handle, and the interface that a backend implements.
 *
 * group.c checks arguments, numbers the operations, and runs them in order: at once on the caller's
 * thread, or on the handle's communication thread when the caller does not wait. A backend only has
 * blocking functions, and no argument of theirs is wrong. */
#ifndef SLI_COMM_GROUP_H
#define SLI_COMM_GROUP_H

#include "comm/operation.h"

#include <stdbool.h>

typedef struct sli_message {
    void *data; /* read by a send, written by a receive */
    int64_t count;
    sl_dtype dtype;
    int peer; /* SL_ANY_RANK: a receive from anyone */
    int tag;
    int *source; /* of a receive; may be NULL */
} sli_message;

enum { SLI_SENDER_BYTES = 32 };
/* Whom a receive waits for: writes "rank 2" and returns `text`, or returns "any rank". */
const char *sli_sender_text(const sli_message *message, char text[SLI_SENDER_BYTES]);

typedef struct sli_group_ops {
    /* Runs one collective operation; fails when the group is or becomes broken. */
    sl_status (*collective)(sl_group *group, const sli_operation *operation);
    /* Never waits for the receiver: the message is delivered or copied. */
    sl_status (*send)(sl_group *group, const sli_message *message);
    sl_status (*receive)(sl_group *group, const sli_message *message);
    /* A collective that forms the sub-group of `color`. */
    sl_status (*split)(sl_group *group, int color, uint64_t sequence, sl_group **out);
    void (*abort)(sl_group *group, sl_status error, const char *text);
    void (*leave)(sl_group *group);
} sli_group_ops;

typedef struct sli_comm_thread sli_comm_thread;

struct sl_group {
    const sli_group_ops *ops;
    int rank, size;
    sl_group_options options; /* with the default time limit filled in */
    uint64_t sequence;        /* of the newest collective operation */
    sli_comm_thread *thread;  /* NULL until an operation is started without waiting for it */
    void *state;              /* the backend's */
};

#endif
