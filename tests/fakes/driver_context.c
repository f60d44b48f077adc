/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: created, primary with reference counts, current per thread as a stack. */
#include <stdlib.h>

#include "driver_calls_impl.h"

#define MAX_CONTEXTS 1024
#define MAX_DEPTH 32

static struct fake_context primary[MAX_DEVICES];
static struct fake_context *created[MAX_CONTEXTS];
static int created_count;

static __thread struct fake_context *stack[MAX_DEPTH];
static __thread int depth;

CUresult need_init(void)
{
	return initialized && !forked_after_init ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult need_device(CUdevice device)
{
	CUresult result = need_init();
	if (result)
		return result;
	return device < 0 || device >= settings.devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static bool is_primary(CUcontext context)
{
	return context >= primary && context < primary + MAX_DEVICES && context->primary;
}

CUresult need_context(CUcontext context)
{
	CUresult result = need_init();

	if (result)
		return result;
	if (is_primary(context))
		return context->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	for (int i = 0; i < created_count; i++)
		if (context == created[i])
			return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult context_current(struct fake_context **context)
{
	CUresult result = need_init();

	if (result)
		return result;
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = stack[depth - 1];
	return (*context)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_to_free(void)
{
	CUresult result = need_init();

	if (!result && depth && !stack[depth - 1]->alive)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return result;
}

static void begin(struct fake_context *context)
{
	context->alive = true;
	account_context(context->device, true);
}

static void end(struct fake_context *context)
{
	if (!context->alive)
		return;
	allocations_end_context(context);
	account_context(context->device, false);
	context->alive = false;	/* references to a primary context stay to be released */
}

CUresult drv_init(unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (forked_after_init)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!settings.devices)
		return CUDA_ERROR_NO_DEVICE;
	initialized = true;
	return CUDA_SUCCESS;
}

CUresult drv_context_create_v1(CUcontext *context, CUdevice device)
{
	CUresult result = drv_context_create(context, device);

	if (!result)
		(*context)->first_interface = true;
	return result;
}

CUresult drv_context_create(CUcontext *context, CUdevice device)
{
	CUresult result = need_device(device);
	struct fake_context *fresh;

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	fresh = calloc(1, sizeof(*fresh));
	pthread_mutex_lock(&fake_lock);
	if (!fresh || created_count == MAX_CONTEXTS || depth == MAX_DEPTH) {
		pthread_mutex_unlock(&fake_lock);
		free(fresh);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	fresh->device = device;
	fresh->references = 1;
	begin(fresh);
	created[created_count++] = fresh;
	pthread_mutex_unlock(&fake_lock);
	stack[depth++] = fresh;
	*context = fresh;
	return CUDA_SUCCESS;
}

CUresult drv_context_destroy(CUcontext context)
{
	CUresult result = need_context(context);

	if (result)
		return result;
	if (context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&fake_lock);
	end(context);
	pthread_mutex_unlock(&fake_lock);
	if (depth && stack[depth - 1] == context)
		depth--;
	return CUDA_SUCCESS;
}

CUresult drv_context_attach(CUcontext *context, unsigned int flags)
{
	struct fake_context *current = NULL;
	CUresult result = context_current(&current);

	if (result)
		return result;
	if (!context || flags || current->primary)
		return CUDA_ERROR_INVALID_VALUE;
	current->references++;
	*context = current;
	return CUDA_SUCCESS;
}

CUresult drv_context_detach(CUcontext context)
{
	CUresult result = need_context(context);

	if (result)
		return result;
	if (context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	return --context->references ? CUDA_SUCCESS : drv_context_destroy(context);
}

CUresult drv_context_set_current(CUcontext context)
{
	/* a primary context may be set current before it is retained */
	CUresult result = context && !is_primary(context) ? need_context(context) : need_init();

	if (result)
		return result;
	if (!context) {
		if (depth)
			depth--;
		return CUDA_SUCCESS;
	}
	if (!depth)
		depth = 1;
	stack[depth - 1] = context;
	return CUDA_SUCCESS;
}

CUresult drv_context_get_current(CUcontext *context)
{
	CUresult result = need_init();

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

CUresult drv_context_push(CUcontext context)
{
	CUresult result = need_context(context);

	if (result)
		return result;
	if (depth == MAX_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

CUresult drv_context_pop(CUcontext *context)
{
	CUresult result = need_init();

	if (result)
		return result;
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (context)
		*context = stack[depth];
	return CUDA_SUCCESS;
}

CUresult drv_context_device(CUdevice *device)
{
	struct fake_context *current = NULL;
	CUresult result = context_current(&current);

	if (result)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = current->device;
	return CUDA_SUCCESS;
}

CUresult drv_context_synchronize(void)
{
	struct fake_context *current = NULL;
	return context_current(&current);
}

/* The primary context, made alive: what the runtime also reaches without a visible call. */
CUcontext primary_open(CUdevice device)
{
	struct fake_context *context = &primary[device];

	pthread_mutex_lock(&fake_lock);
	context->device = device;
	context->primary = true;
	if (!context->alive)
		begin(context);
	pthread_mutex_unlock(&fake_lock);
	return context;
}

CUresult drv_primary_retain(CUcontext *context, CUdevice device)
{
	CUresult result = need_device(device);

	if (result)
		return result;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = primary_open(device);
	pthread_mutex_lock(&fake_lock);
	(*context)->references++;
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

CUresult drv_primary_release(CUdevice device)
{
	CUresult result = need_device(device);

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	if (!primary[device].references)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (!--primary[device].references)
		end(&primary[device]);
	pthread_mutex_unlock(&fake_lock);
	return result;
}

CUresult drv_primary_reset(CUdevice device)
{
	CUresult result = need_device(device);

	if (result)
		return result;
	pthread_mutex_lock(&fake_lock);
	end(&primary[device]);
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

CUresult drv_primary_state(CUdevice device, unsigned int *flags, int *active)
{
	CUresult result = need_device(device);

	if (result)
		return result;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = 0;
	*active = primary[device].alive;
	return CUDA_SUCCESS;
}
