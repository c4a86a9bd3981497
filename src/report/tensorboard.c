/* Scalars as TensorBoard's event files. A file is a row of records:
 *
 *     length, 8 bytes | masked CRC32C of these, 4 | data | masked CRC32C of the data, 4
 *
 * all little-endian; the data are a protocol buffer, tensorflow.Event:
 *
 *     1 wall_time double | 2 step int64 | 3 file_version string
 *     5 summary { 1 value { 1 tag string | 2 simple_value float } … }
 *
 * Source: tensorflow/core/lib/io/record_writer.h, event.proto and summary.proto. */
#include "core/error.h"
#include "core/host.h"
#include "report/run_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 1024 }; /* of an event: less than 16 scalars */

/* ---- Protocol buffers --------------------------------------------------------------------- */

typedef struct message {
    uint8_t bytes[MOST_BYTES];
    size_t length;
} message;

enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };

static void put_varint(message *event, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        event->bytes[event->length++] = (uint8_t)(value | 0x80);
    event->bytes[event->length++] = (uint8_t)value;
}

static void put_fixed(uint8_t *field, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        field[i] = (uint8_t)(value >> (8 * i));
}

static void put_field(message *event, int field, int type, uint64_t value)
{
    event->bytes[event->length++] = (uint8_t)(field << 3 | type);
    if (type == VARINT) {
        put_varint(event, value);
        return;
    }
    int bytes = type == FIXED_64 ? 8 : 4;
    put_fixed(event->bytes + event->length, value, bytes);
    event->length += (size_t)bytes;
}

static void put_bytes(message *event, int field, const void *data, size_t length)
{
    event->bytes[event->length++] = (uint8_t)(field << 3 | BYTES);
    put_varint(event, length);
    memcpy(event->bytes + event->length, data, length);
    event->length += length;
}

/* `seconds` since 1970. */
static message begin_event(int64_t step, double seconds)
{
    message event = {.length = 0};
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    put_field(&event, 1, FIXED_64, bits);
    put_field(&event, 2, VARINT, (uint64_t)step);
    return event;
}

/* ---- Records ------------------------------------------------------------------------------ */

/* CRC32C (Castagnoli), rotated and moved, as checksums of checksums would be weak. */
static uint32_t masked_crc(const uint8_t *data, size_t length)
{
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8;
}

static sl_status write_event(sli_run_file *events, const message *event)
{
    uint8_t head[12], tail[4];
    put_fixed(head, event->length, 8);
    put_fixed(head + 8, masked_crc(head, 8), 4);
    put_fixed(tail, masked_crc(event->bytes, event->length), 4);
    fwrite(head, 1, sizeof head, events->file);
    fwrite(event->bytes, 1, event->length, events->file);
    fwrite(tail, 1, sizeof tail, events->file);
    return sli_run_file_flush(events);
}

typedef struct scalar {
    const char *tag;
    double value;
} scalar;

static sl_status write_scalars(sli_run_file *events, int64_t step, double time,
                               const scalar *scalars, int count)
{
    message event = begin_event(step, time), summary = {.length = 0};
    for (int i = 0; i < count; i++) {
        message value = {.length = 0};
        float number = (float)scalars[i].value;
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_field(&value, 2, FIXED_32, bits);
        put_bytes(&summary, 1, value.bytes, value.length);
    }
    put_bytes(&event, 5, summary.bytes, summary.length);
    return write_event(events, &event);
}

/* ---- The run ------------------------------------------------------------------------------ */

/* A file of its own for each run, as TensorBoard expects in a directory. */
sl_status sli_tensorboard_open(const char *directory, sli_run_file *out)
{
    char host[SLI_HOST_NAME_BYTES], *path;
    *out = (sli_run_file){.file = NULL};
    sli_host_name(host);
    bool made = mkdir(directory, 0777) == 0;
    if (!made && errno != EEXIST)
        return sl_error(SL_ERR_IO, "%s: the directory cannot be made: %s", directory,
                        strerror(errno));
    size_t bytes = strlen(directory) + sizeof host + 80;
    if (!(path = malloc(bytes)))
        return sli_no_memory(directory, "a file's name");
    snprintf(path, bytes, "%s/events.out.tfevents.%010" PRId64 ".%s.%ld", directory,
             (int64_t)time(NULL), host, (long)getpid());
    sl_status status = sli_run_file_open(path, out);
    out->made_home = made;
    free(path);
    return status;
}

/* The runs of a log follow one another in one file. */
static sl_status begin_events(sli_run_file *events)
{
    static const char version[] = "brain.Event:2";
    if (events->has_begun)
        return SL_OK;
    events->has_begun = true;
    message event = begin_event(0, (double)time(NULL));
    put_bytes(&event, 3, version, sizeof version - 1);
    return write_event(events, &event);
}

/* "train/loss/NAME" of a source of a mixture, where it has one. */
static sl_status write_source(sli_run_file *events, const sli_history_source *source,
                              const char *split, int64_t step, double time, double loss)
{
    char tag[sizeof source->name + 16];
    if (!isfinite(loss))
        return SL_OK;
    snprintf(tag, sizeof tag, "%s/loss/%s", split, source->name);
    return write_scalars(events, step, time, &(scalar){tag, loss}, 1);
}

static sl_status write_step(sli_run_file *events, const sli_run_history *history,
                            const sli_history_step *step)
{
    const double *values = step->values;
    for (size_t i = 0; i < history->source_count; i++) {
        const sli_history_source *source = &history->sources[i];
        int64_t at = step->step % SLI_SOURCE_STEPS;
        if (source->steps[at] == step->step)
            SL_TRY(write_source(events, source, "train", step->step, values[SLI_STEP_TIME],
                                source->losses[at]));
    }
    return write_scalars(events, step->step, values[SLI_STEP_TIME],
                         (const scalar[]){{"train/loss", values[SLI_STEP_LOSS]},
                                          {"train/perplexity", exp(values[SLI_STEP_LOSS])},
                                          {"train/grad_norm", values[SLI_STEP_GRAD_NORM]},
                                          {"train/learning_rate", values[SLI_STEP_LR]},
                                          {"speed/tokens_per_s", values[SLI_STEP_TOKENS_PER_S]},
                                          {"speed/flops_per_s", values[SLI_STEP_FLOPS_PER_S]},
                                          {"speed/mfu", values[SLI_STEP_MFU]}},
                         isnan(values[SLI_STEP_MFU]) ? 6 : 7);
}

static sl_status write_pipeline(sli_run_file *events, const sli_history_pipeline *pipeline)
{
    if (pipeline->replica > 0 || !pipeline->ends_epoch)
        return SL_OK;
    return write_scalars(events, pipeline->step, pipeline->time,
                         (const scalar[]){{"pipeline/bubble_measured", pipeline->bubble_measured},
                                          {"pipeline/bubble_predicted",
                                           pipeline->bubble_predicted}},
                         2);
}

/* A history has the sources' losses of validations alone. */
static sl_status write_evaluation(sli_run_file *events, const sli_run_history *history,
                                  const sli_history_eval *eval)
{
    for (size_t i = 0; i < history->source_count && !eval->is_test; i++)
        SL_TRY(write_source(events, &history->sources[i], "valid", eval->step, eval->time,
                            history->sources[i].valid_loss));
    return write_scalars(events, eval->step, eval->time,
                         (const scalar[]){{eval->is_test ? "test/loss" : "valid/loss", eval->loss},
                                          {eval->is_test ? "test/perplexity" : "valid/perplexity",
                                           eval->perplexity}},
                         2);
}

sl_status sli_tensorboard_add(sli_run_file *events, const sli_run_history *history,
                              sli_record_kind kind, const void *record)
{
    if (kind == SLI_RECORD_RUN)
        return begin_events(events);
    if (!events->has_begun)
        return SL_OK;
    return kind == SLI_RECORD_STEP       ? write_step(events, history, record)
           : kind == SLI_RECORD_PIPELINE ? write_pipeline(events, record)
           : kind == SLI_RECORD_EVAL     ? write_evaluation(events, history, record)
                                         : SL_OK;
}
