/* What processes tell each other beside MPI: notes of one size over TCP, between each rank and the
 * hub (hub.h), and how the two find each other. */
#ifndef SLI_COMM_MPI_NOTE_H
#define SLI_COMM_MPI_NOTE_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

typedef enum sli_note_kind {
    SLI_NOTE_HELLO, /* the first one each way: text is the hub's token */
    SLI_NOTE_ALIVE, /* says nothing else */
    SLI_NOTE_JOIN,  /* `rank` of the group, of `number` ranks, is this process */
    SLI_NOTE_LEFT,  /* `rank` of the group has left after operation `sequence` */
    SLI_NOTE_BREAK, /* the group is broken: `number` is the status, text the error */
    SLI_NOTE_LATE,  /* operation `sequence`, `text`, is past the limit of `seconds`: who is missing?
                     */
    SLI_NOTE_ASK,   /* hub: where in the group are you? */
    SLI_NOTE_AT,    /* `rank` of the group has begun operation `sequence` */
    SLI_NOTE_DEAD,  /* hub: the process `rank` is no more; text says what happened */
    SLI_NOTE_BYE,   /* this process ends; `number` is 0 where it is ready to finalize MPI */
    SLI_NOTE_END    /* hub: all that live have said BYE; `number` is 0 if all are ready */
} sli_note_kind;

enum { SLI_NOTE_TEXT_BYTES = 512, SLI_TOKEN_BYTES = 16 };

typedef struct sli_note {
    uint32_t magic; /* filled in by sli_note_send */
    int32_t kind, rank, number;
    uint64_t group, sequence;
    double seconds;
    char text[SLI_NOTE_TEXT_BYTES];
} sli_note;

/* One end of a connection, with what has come of the next note. */
typedef struct sli_line {
    int fd; /* -1: closed */
    size_t used;
    sli_note next;
} sli_line;

void sli_line_close(sli_line *line);

/* False where the line is broken, or its other end takes nothing any more: it never waits. */
bool sli_note_send(int fd, const sli_note *note);

typedef enum sli_line_state { SLI_LINE_NOTE, SLI_LINE_NOTHING, SLI_LINE_BROKEN } sli_line_state;

/* Takes the next note off the line, if it has come as a whole. Never waits. */
sli_line_state sli_note_take(sli_line *line, sli_note *out);

/* Where the hub listens; plain data, for MPI to hand around. */
enum { SLI_MAX_HOST_ADDRESSES = 16 };
typedef struct sli_hub_address {
    unsigned char token[SLI_TOKEN_BYTES]; /* who knows it belongs to this job */
    int32_t count;
    struct sockaddr_storage hosts[SLI_MAX_HOST_ADDRESSES]; /* loopback first */
} sli_hub_address;

/* Listens on a free port of every interface. */
sl_status sli_hub_listen(int *fd, sli_hub_address *out);

/* Tries the hub's addresses one after the other, and says HELLO as `rank`. */
sl_status sli_hub_call(const sli_hub_address *hub, int rank, sli_line *out);

#endif
