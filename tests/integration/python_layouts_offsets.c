/* Prints the offsets of gpumemprof/stack/python/layouts.py as an interpreter's own headers have
 * them, one "name value" a line. A field that the version does not have is not printed. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#if PY_VERSION_HEX >= 0x03090000
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif
#include <internal/pycore_pystate.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe.h>
#include <internal/pycore_runtime_structs.h>
#elif PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
#endif

#if PY_VERSION_HEX >= 0x030b0000
typedef struct _PyInterpreterFrame Frame;
#define THREADS threads.head
#define PREVIOUS previous
#else
typedef PyFrameObject Frame;
#define THREADS tstate_head
#define PREVIOUS f_back
#endif

#if PY_VERSION_HEX >= 0x030d0000
#define INNERMOST current_frame
#define EXECUTABLE f_executable
#define INSTRUCTION instr_ptr
#elif PY_VERSION_HEX >= 0x030b0000
#define INNERMOST cframe
#define EXECUTABLE f_code
#define INSTRUCTION prev_instr
#else
#define INNERMOST frame
#define EXECUTABLE f_code
#define INSTRUCTION f_lasti
#endif

#define PRINT(name, value) printf("%s %zu\n", name, (size_t)(value))
#define OFFSET(name, type, field) PRINT(name, offsetof(type, field))

/* The bit of the state word where kind, compact and ascii begin. */
static int kind_shift(void)
{
	PyASCIIObject text;
	unsigned int word;

	memset(&text, 0, sizeof(text));
	text.state.kind = 1;
	memcpy(&word, &text.state, sizeof(word));
	return __builtin_ctz(word);
}

int main(void)
{
	OFFSET("runtime_interpreters_head", _PyRuntimeState, interpreters.head);
#if PY_VERSION_HEX < 0x030c0000
	OFFSET("runtime_current", _PyRuntimeState, gilstate.tstate_current);
	OFFSET("runtime_tss_key", _PyRuntimeState, gilstate.autoTSSkey);
#elif PY_VERSION_HEX < 0x030f0000
	OFFSET("runtime_tss_key", _PyRuntimeState, autoTSSkey);
#endif
	OFFSET("interp_next", PyInterpreterState, next);
	OFFSET("interp_threads", PyInterpreterState, THREADS);
	OFFSET("tstate_next", PyThreadState, next);
	OFFSET("tstate_thread_id", PyThreadState, thread_id);
	OFFSET("tstate_frame", PyThreadState, INNERMOST);
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
	OFFSET("cframe_frame", _PyCFrame, current_frame);
#endif
	OFFSET("frame_code", Frame, EXECUTABLE);
	OFFSET("frame_previous", Frame, PREVIOUS);
	OFFSET("frame_instruction", Frame, INSTRUCTION);
#if PY_VERSION_HEX >= 0x030b0000
	OFFSET("frame_owner", Frame, owner);
#endif
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000
	OFFSET("frame_is_entry", Frame, is_entry);
#endif
#if PY_VERSION_HEX >= 0x030e0000 && defined(Py_GIL_DISABLED)
	OFFSET("frame_tlbc_index", Frame, tlbc_index);
	OFFSET("code_tlbc", PyCodeObject, co_tlbc);
#endif
	OFFSET("object_type", PyObject, ob_type);
	OFFSET("code_firstlineno", PyCodeObject, co_firstlineno);
	OFFSET("code_filename", PyCodeObject, co_filename);
	OFFSET("code_name", PyCodeObject, co_name);
#if PY_VERSION_HEX >= 0x030b0000
	OFFSET("code_qualname", PyCodeObject, co_qualname);
	OFFSET("code_bytecode", PyCodeObject, co_code_adaptive);
	OFFSET("variable_size", PyVarObject, ob_size);
#endif
#if PY_VERSION_HEX >= 0x030a0000
	OFFSET("code_linetable", PyCodeObject, co_linetable);
#else
	OFFSET("code_linetable", PyCodeObject, co_lnotab);
#endif
	OFFSET("str_length", PyASCIIObject, length);
	OFFSET("str_state", PyASCIIObject, state);
	PRINT("str_kind_shift", kind_shift());
	PRINT("str_ascii_data", sizeof(PyASCIIObject));
	PRINT("str_compact_data", sizeof(PyCompactUnicodeObject));
	OFFSET("bytes_size", PyVarObject, ob_size);
	OFFSET("bytes_data", PyBytesObject, ob_sval);
	return 0;
}
