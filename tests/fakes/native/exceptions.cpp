// Stacks while an exception is in flight: in a destructor that it runs, and where it is caught.
#include "capture.h"

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace demo {

volatile int sink;

struct Guard {
	int number;
	bool captures;
	FRAME ~Guard()
	{
		if (captures)
			capture_point();
		sink += number;
	}
};

template <typename T> FRAME T thrower(T depth, bool captures)
{
	Guard guard{static_cast<int>(depth), captures && depth == 1};

	if (depth == 0)
		throw std::runtime_error("thrown " + std::to_string(depth));
	T r = thrower<T>(depth - 1, captures);
	KEEP();
	return r + sink;
}

class Catcher {
    public:
	FRAME int operator()(bool captures) const
	{
		try {
			return static_cast<int>(thrower<long>(4, captures));
		} catch (const std::exception &error) {
			if (!captures)
				capture_point();
			return static_cast<int>(std::strlen(error.what()));
		}
	}
};

} // namespace demo

namespace {
FRAME int through_lambda(bool captures)
{
	std::function<int(bool)> call = [](bool c) { return demo::Catcher()(c) + demo::sink; };

	return call(captures) + demo::sink;
}
} // namespace

int main(int, char **argv)
{
	capture_this_stack();
	return through_lambda(std::strcmp(argv[1], "destructor") == 0) & 1;
}
