/* Checkpoints under DistributedDataParallel: rank 0 saves, all wait for it, all load.
 *
 * One rank writes, because all have the same weights; the barrier keeps the others from reading a
 * file that is not there yet. */
#include <sluice/sluice.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RANKS = 2, MAX_PARAMETERS = 8 };

typedef struct replica {
    sl_device *device;
    sl_module *module;
    sl_parameter_set *parameters;
    sl_ddp *ddp;
} replica;

static sl_status open_replica(sl_group *group, replica *at)
{
    sl_module *layers[3];
    SL_TRY(sl_device_create_cpu(1, &at->device));
    SL_TRY(sl_linear_create(10, 10, false, &layers[0]));
    SL_TRY(sl_activation_create(SL_ACTIVATION_RELU, &layers[1]));
    SL_TRY(sl_linear_create(10, 5, false, &layers[2]));
    SL_TRY(sl_sequential_create(layers, 3, &at->module));
    sl_parameter_set_options placement = {.device = at->device, .seed = 7};
    SL_TRY(sl_parameter_set_create(at->module, 0, 0, &placement, &at->parameters));
    sl_ddp_options options = {.group = group, .module = at->module, .parameters = at->parameters};
    return sl_ddp_create(&options, &at->ddp);
}

static void close_replica(replica *at)
{
    sl_ddp_destroy(&at->ddp);
    sl_parameter_set_destroy(&at->parameters);
    sl_module_destroy(&at->module);
    sl_device_destroy(&at->device);
}

/* ---- Saving and loading ---- */

/* The parameters under their names, where they lie: CPU devices' memory is host memory. */
static size_t list_items(const sl_parameter_set *parameters, sl_safetensors_item *items)
{
    size_t count = (size_t)sl_parameter_set_count(parameters);
    for (size_t i = 0; i < count; i++) {
        const sl_parameter *parameter = sl_parameter_set_get(parameters, (int)i);
        items[i] = (sl_safetensors_item){sl_parameter_name(parameter), SL_F32,
                                         *sl_parameter_shape(parameter),
                                         sl_tensor_data(sl_parameter_value(parameter))};
    }
    return count;
}

static double sum_of_weights(const sl_parameter_set *parameters)
{
    double sum = 0;
    for (int b = 0; b < sl_parameter_set_bucket_count(parameters); b++) {
        const sl_tensor *values = sl_parameter_set_bucket_values(parameters, b);
        for (int64_t i = 0; i < sl_tensor_count(values); i++)
            sum += sl_tensor_f32(values)[i];
    }
    return sum;
}

static sl_status forget_weights(sl_parameter_set *parameters)
{
    for (int b = 0; b < sl_parameter_set_bucket_count(parameters); b++)
        SL_TRY(sl_tensor_zero(sl_parameter_set_bucket_values(parameters, b)));
    return SL_OK;
}

static sl_status save_and_load(sl_group *group, replica *at, const char *path)
{
    sl_safetensors_item items[MAX_PARAMETERS];
    size_t count = list_items(at->parameters, items);
    int rank = sl_group_rank(group);
    double before = sum_of_weights(at->parameters);
    if (rank == 0)
        SL_TRY(sl_safetensors_save(path, items, count, NULL, 0));
    SL_TRY(sl_group_barrier(group, NULL)); /* now it is there */
    SL_TRY(forget_weights(at->parameters));
    SL_TRY(sl_safetensors_load(path, items, count));
    double after = sum_of_weights(at->parameters);
    printf("[RANK %d]: sum of weights saved %.9g, loaded %.9g\n", rank, before, after);
    SL_TRY(sl_group_barrier(group, NULL)); /* all have read it */
    if (rank == 0)
        unlink(path);
    return before == after ? SL_OK
                           : sl_error(SL_ERR_INTERNAL, "other weights came back than were saved");
}

static sl_status demo_checkpoint(sl_group *group, void *path)
{
    replica at = {0};
    sl_status status = open_replica(group, &at);
    if (status == SL_OK)
        status = save_and_load(group, &at, path);
    close_replica(&at);
    return status;
}

int main(void)
{
    char folder[] = "/tmp/sluice-checkpoint-XXXXXX", path[64];
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    sl_status status = sl_spawn(demo_checkpoint, path, RANKS, NULL);
    if (status != SL_OK)
        fprintf(stderr, "ddp_checkpoint: %s\n", sl_error_text());
    unlink(path);
    rmdir(folder);
    return status != SL_OK;
}
