#include "rig.h"

#include "check.h"
#include "modules.h"
#include "sluice/layers.h"

/* Devices for the pipeline ranks of this rank of the group, and none for the others. */
static sl_status open_devices(const sl_pipe_options *options, rig *out)
{
    int virtual_stages = options->virtual_stages ? options->virtual_stages : 1;
    int ranks = options->stages / virtual_stages;
    int size = options->group ? sl_group_size(options->group) : 1;
    int own = options->group ? sl_group_rank(options->group) : 0;
    for (int i = 0; i < ranks; i++) {
        int rank = options->group_ranks ? options->group_ranks[i] : i / (ranks / size);
        if (rank == own)
            SL_TRY(sl_device_create_cpu(1, &out->devices[i]));
    }
    return SL_OK;
}

typedef struct made {
    sl_module *model;
    sl_loss *loss;
} made;

static sl_status give(void *context, sl_module **model, sl_loss **loss)
{
    const made *given = context;
    *model = given->model;
    *loss = given->loss;
    return SL_OK;
}

sl_status rig_open(sl_module *model, sl_loss *loss, const sl_training_options *options, rig *out)
{
    made given = {model, loss};
    sl_training_options filled = *options;
    *out = (rig){0};
    if (!loss)
        check_ok(sl_mse_loss_create(&given.loss));
    filled.create_model = give;
    filled.context = &given;
    filled.pipe.devices = out->devices;
    check_ok(open_devices(&options->pipe, out));
    SL_TRY(sl_training_create(&filled, &out->training));
    out->model = out->training->model;
    out->pipe = out->training->pipe;
    out->ddp = out->training->ddp;
    out->optimizer = out->training->optimizer;
    return SL_OK;
}

void rig_destroy(rig *dead)
{
    sl_training_destroy(&dead->training);
    for (int i = 0; i < RIG_MAX_RANKS; i++)
        sl_device_destroy(&dead->devices[i]);
}

sl_module *rig_linears(int count)
{
    sl_module *model = NULL, *next;
    for (int i = 0; i < count; i++)
        check_ok(sl_sequential_append(&model, sl_linear_create(RIG_WIDTH, RIG_WIDTH, true, &next),
                                      &next));
    return model;
}

sl_status rig_train(const rig *trained, double *loss)
{
    sl_shape shape = sl_shape_2d(RIG_WIDTH, RIG_WIDTH);
    SCOPED(sl_device) *device = NULL;
    SL_TRY(sl_device_create_cpu(1, &device));
    SCOPED(sl_tensor) *rows = random_tensor(device, &shape, 1);
    sl_pipe_batch batch = {.input = rows, .targets = rows};
    sl_pipe_zero_grad(trained->pipe);
    return trained->ddp ? sl_ddp_train(trained->ddp, &batch, loss)
                        : sl_pipe_train(trained->pipe, &batch, loss);
}
