// C++ stacks, one for each name: names of all shapes, code before main and after it, coroutines.
#include "capture.h"

#include <algorithm>
#include <coroutine>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace demo {

int sink; // read and written by other files, for all the compiler knows

FRAME int leaf(int n)
{
	volatile char buffer[24];

	buffer[n & 15] = static_cast<char>(n);
	capture_point();
	return buffer[n & 15] + sink;
}

template <typename Key, typename Value = std::vector<Key>, int Size = 4> struct Table {
	std::map<Key, Value> held;

	template <typename... Rest> FRAME int insert(const Key &key, Rest &&...rest)
	{
		held[key] = Value{};
		int r = leaf(Size + static_cast<int>(sizeof...(rest)));
		KEEP();
		return r + sink;
	}
	FRAME Table &operator+=(const Key &key)
	{
		sink += insert(key, 1.5, "text", std::string("s"));
		return *this;
	}
	FRAME explicit operator int() const
	{
		int r = leaf(Size);
		KEEP();
		return r;
	}
};

struct Left {
	virtual ~Left() = default;
	virtual int left(int) { return 0; }
	long filler = 1;
};

struct Right {
	virtual ~Right() = default;
	virtual int right(int) = 0;
	long filler = 2;
};

// Called through Right, which is not at the beginning of it: by a thunk.
struct Both : Left, Right {
	FRAME int right(int n) override
	{
		int r = leaf(n) + static_cast<int>(Left::filler);
		KEEP();
		return r;
	}
};

struct InConstructor {
	int value;

	FRAME explicit InConstructor(int n) : value(leaf(n)) { KEEP(); }
	FRAME ~InConstructor()
	{
		sink += leaf(value);
		KEEP();
	}
};

struct Task {
	struct promise_type {
		Task get_return_object()
		{
			return {std::coroutine_handle<promise_type>::from_promise(*this)};
		}
		std::suspend_always initial_suspend() noexcept { return {}; }
		std::suspend_always final_suspend() noexcept { return {}; }
		void return_void() {}
		void unhandled_exception() { std::terminate(); }
	};
	std::coroutine_handle<promise_type> handle;
};

Task coroutine(int n)
{
	co_await std::suspend_always{};
	sink += leaf(n);
	co_return;
}

namespace {
template <auto Function> FRAME int through_pointer(int n)
{
	int r = Function(n);
	KEEP();
	return r + sink;
}
} // namespace

FRAME void rethrown(int n)
{
	try {
		try {
			throw std::out_of_range("first");
		} catch (...) {
			sink += leaf(n);
			std::throw_with_nested(std::runtime_error("second"));
		}
	} catch (const std::exception &error) {
		sink += leaf(static_cast<int>(std::strlen(error.what())));
	}
	KEEP();
}

FRAME void not_thrown_through(int n) noexcept
{
	std::function<int(int)> call = [n](int m) { return leaf(n + m) + sink; };

	sink += call(n);
	KEEP();
}

void sorted()
{
	std::vector<std::string> words{"b", "a", "c"};
	bool once = false;

	std::sort(words.begin(), words.end(), [&once](const auto &a, const auto &b) {
		if (!once)
			sink += leaf(3);
		once = true;
		return a < b;
	});
}

} // namespace demo

// Names as numerical libraries have them.
void *operator new(std::size_t size)
{
	static bool once;

	if (size == 12345 && !once) {
		once = true;
		demo::sink += demo::leaf(1);
	}
	return std::malloc(size);
}
void operator delete(void *address) noexcept { std::free(address); }
void operator delete(void *address, std::size_t) noexcept { std::free(address); }

static const char *early()
{
	const char *kind = std::getenv("STACKS_EARLY");

	if (kind)
		demo::sink += demo::leaf(2);
	return kind;
}

struct Late {
	const char *kind = early();
	FRAME ~Late()
	{
		if (kind)
			demo::sink += demo::leaf(3);
	}
} before_and_after_main;

int main(int, char **argv)
{
	using demo::sink;
	std::string kind = argv[1];

	if (kind == "templates") {
		demo::Table<std::string> table;
		table += "key";
		sink += static_cast<int>(demo::Table<long, std::shared_ptr<int>, -3>());
	} else if (kind == "thunk") {
		std::unique_ptr<demo::Right> right = std::make_unique<demo::Both>();
		sink += right->right(2);
	} else if (kind == "constructor") {
		demo::InConstructor object(2);
		KEEP();
	} else if (kind == "co_await") {
		auto task = demo::coroutine(3);
		task.handle.resume();
		task.handle.resume();
		task.handle.destroy();
	} else if (kind == "function as template argument") {
		sink += demo::through_pointer<demo::leaf>(3);
	} else if (kind == "rethrown") {
		demo::rethrown(3);
	} else if (kind == "noexcept") {
		demo::not_thrown_through(1);
	} else if (kind == "std::sort") {
		demo::sorted();
	} else if (kind == "std::thread") {
		std::thread([] { sink += demo::leaf(3); }).join();
	} else if (kind == "operator new") {
		auto block = std::make_unique<std::vector<char>>(12345);
		sink += (*block)[0];
	} else if (kind != "before main") {
		return 2;
	}
	return 0;
}
