# Stand-in CUDA libraries and programs, built into build/fakes. As the genuine files: optimised,
# no frame pointers, .eh_frame kept, stripped to .dynsym.

FAKES := build/fakes
FAKE_CFLAGS := -std=gnu11 -O2 -g0 -Wall -Wextra -Wno-unused-parameter -Werror -fomit-frame-pointer \
	-fasynchronous-unwind-tables -pthread
FAKE_LIB_FLAGS := $(FAKE_CFLAGS) -fPIC -fvisibility=hidden -shared -s \
	-Wl,-Bsymbolic -Wl,--build-id -Wl,-z,relro

FAKE_HEADERS := $(wildcard tests/fakes/*.h)
FAKE_DRIVER := $(addprefix tests/fakes/,state.c truth.c allocations.c $(notdir \
	$(filter-out %/driver_loop.c %/driver_only.c,$(wildcard tests/fakes/driver_*.c))))
FAKE_RUNTIME := tests/fakes/runtime.c tests/fakes/runtime_exports.c

FAKE_FILES := $(FAKES)/libcuda.so.1 $(FAKES)/libcudart.so.12 $(FAKES)/libcudart.so.13 \
	$(FAKES)/driver_loop $(FAKES)/driver_loop_dlopen $(FAKES)/driver_only

$(FAKES): | $(SETUP)
	mkdir -p $@

$(FAKES)/libcuda.so.1: $(FAKE_DRIVER) $(FAKE_HEADERS) tests/fakes/fakes.mk | $(FAKES)
	$(CC) $(FAKE_LIB_FLAGS) -Wl,-soname,libcuda.so.1 -o $@ $(FAKE_DRIVER)

$(FAKES)/libcudart.so.%: $(FAKE_RUNTIME) $(FAKE_HEADERS) tests/fakes/fakes.mk | $(FAKES)
	echo 'libcudart.so.$* { global: cuda*; local: $(if $(filter 13,$*),cudaThreadExit;) *; };' > $@.map
	$(CC) $(FAKE_LIB_FLAGS) -DRUNTIME_VERSION=$(if $(filter 12,$*),12090,$*000) -Wl,-soname,libcudart.so.$* \
		-Wl,--version-script=$@.map -o $@ $(FAKE_RUNTIME) -ldl

$(FAKES)/driver_loop: tests/fakes/driver_loop.c $(FAKES)/libcudart.so.12 $(FAKE_HEADERS)
	$(CC) $(FAKE_CFLAGS) -DLINKED -o $@ $< $(FAKES)/libcudart.so.12 -ldl

$(FAKES)/driver_loop_dlopen: tests/fakes/driver_loop.c $(FAKE_HEADERS) tests/fakes/fakes.mk | $(FAKES)
	$(CC) $(FAKE_CFLAGS) -o $@ $< -ldl

$(FAKES)/driver_only: tests/fakes/driver_only.c $(FAKE_HEADERS) tests/fakes/fakes.mk | $(FAKES)
	$(CC) $(FAKE_CFLAGS) -o $@ $< -ldl
