/* A link's messages: headers, which come before a tensor or instead of one, and tensors. The
 * functions are called with the link's lock held, but where they say otherwise. */
#ifndef SLI_PARALLEL_PIPE_PROCESSES_LINK_MESSAGES_H
#define SLI_PARALLEL_PIPE_PROCESSES_LINK_MESSAGES_H

#include "comm/group.h"
#include "parallel/pipe/processes/link.h"
#include "tensor/tensor.h"

typedef enum sli_link_header_kind {
    SLI_LINK_TENSOR = 1, /* its data follow */
    SLI_LINK_FAILURE,    /* an error with this number ends the step */
    SLI_LINK_WAITS       /* the sender has waited for rank `number` for half its time; -1: it waits
                            no longer */
} sli_link_header_kind;

/* Sent as words of 32 bits. */
typedef struct sli_link_header {
    int32_t kind;
    int32_t number;
    int32_t channel, micro;
    sli_link_step step; /* the sender's */
    int32_t dtype, dims;
    int64_t size[SL_MAX_DIMS];
} sli_link_header;

/* Whether a tensor can have this type and shape, and one message can carry it. Every number is
 * checked before it is used. Errors: SL_ERR_INVALID, which names the sender. */
sl_status sli_link_header_check_shape(const sli_link_header *got, const char *sender);

/* Whether the sender runs the same step. */
sl_status sli_link_header_check_step(const sli_link_header *got, const sli_link_step *step,
                                     const char *sender);

/* A header and a tensor on their way out, or the data of a tensor on their way in. */
typedef struct sli_link_message {
    struct sli_link_message *next;
    sli_link_header header;
    sli_transfer header_transfer, data;
    sl_tensor *tensor;
    sli_host_array host; /* the tensor's data */
    int rank;
    bool is_wanted; /* incoming: false if its header was of another step */
} sli_link_message;

/* The next header of another process. */
typedef struct sli_link_source {
    sli_link_header header;
    sli_transfer transfer;
    int64_t received; /* headers so far */
    int waits_for;    /* as it has told in this step; -1: it does not wait for long */
} sli_link_source;

struct sli_link {
    sl_group *group;
    const char (*names)[SLI_LOCATION_BYTES];
    sli_failure *failure;
    pthread_t thread;
    bool has_thread;
    /* Guards all below. Held while polling, and while a tensor is handed to a channel: channels',
     * the failure's and the devices' locks are taken below it. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_active, is_ending;
    sli_error_copy broken;
    sli_link_step step;
    sli_channel *const *channels;
    int channel_count;
    sli_link_message *outgoing, *incoming;
    int told_waits;           /* of this process's ranks, of which the others know */
    int64_t *sent;            /* [ranks] headers */
    sli_link_source *sources; /* [ranks] */
};

/* Has waiting ranks check for errors again. */
void sli_link_wake_ranks(const sli_link *link);

/* Posts the receive of a process's next header. */
sl_status sli_link_post_header(sli_link *link, int rank);

/* Makes a message of a header and a tensor, which it takes; NULL: none. It reads the tensor from
 * its device, which may take long: called without the lock. */
sl_status sli_link_message_create(const sli_link *link, int rank, const sli_link_header *header,
                                  sl_tensor **tensor, sli_link_message **out);
void sli_link_message_destroy(sli_link_message **message); /* NULL is allowed */

/* Starts to send a message, which it takes. */
sl_status sli_link_start_sending(sli_link *link, sli_link_message **message);
sl_status sli_link_send_to_all(sli_link *link, sli_link_header_kind kind, int number);

/* Lets all messages go on; *goes_on becomes true where one does. most[r]: no more headers than that
 * are received from process r in all; NULL: all that come. */
sl_status sli_link_progress(sli_link *link, const int64_t *most, bool *goes_on);

/* Frees the messages of a list to and from one process, or all of them (SL_ANY_RANK). */
void sli_link_cancel(sli_link *link, sli_link_message **list, int rank);

#endif
