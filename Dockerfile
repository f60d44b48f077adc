# The node agent, and the command line: gpumemprof, its compiled BPF programs, no compiler.
#
#   docker build -t REGISTRY/gpumemprof:TAG .
#   docker build --build-arg BCC=1 …    with the bcc loader, for nodes whose kernel has no BTF;
#                                       brings LLVM along
#
# `make image` builds it with podman.

ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
LABEL stage=gpumemprof-build
# Certificates for pip behind a proxy of one's own: --build-arg PIP_CERT=/path, mounted with -v.
ARG PIP_CERT
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN apt-get update -qq \
 && apt-get install -qq -y --no-install-recommends clang libbpf-dev libc6-dev make python3 python3-venv >/dev/null
WORKDIR /src
# What it depends on changes rarely and is a layer of its own.
COPY pyproject.toml ./
RUN python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
                print(*p["dependencies"], *p["optional-dependencies"]["agent"], sep="\n")' > needs.txt \
 && python3 -m venv /opt/gpumemprof \
 && /opt/gpumemprof/bin/pip install -q -r needs.txt
COPY Makefile README.md LICENSE ./
COPY bpf bpf
COPY tests/fakes/fakes.mk tests/fakes/fakes.mk
COPY gpumemprof gpumemprof
# -o: the checkout's .venv, which make wants up to date, has no part in this.
RUN mkdir -p .venv && touch .venv/.setup && make -o .venv/.setup build \
 && /opt/gpumemprof/bin/pip install -q --no-deps . \
 && /opt/gpumemprof/bin/pip uninstall -q -y pip setuptools \
 # The asynchronous half of the Kubernetes client, 68 MB that nothing here imports.
 && rm -rf /opt/gpumemprof/lib/python3*/site-packages/kubernetes/aio \
 && test -s /opt/gpumemprof/lib/python3*/site-packages/gpumemprof/probe/gpumemprof.bpf.o

FROM ${BASE}
ARG BCC=0
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update -qq \
 && apt-get install -qq -y --no-install-recommends python3 libbpf1 ca-certificates \
      $(test "$BCC" = 0 || echo python3-bpfcc) >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/dpkg.log /var/log/apt
COPY --from=build /opt/gpumemprof /opt/gpumemprof
COPY LICENSE /usr/share/doc/gpumemprof/
# The root file system is read-only where the chart runs it: nothing is written beside the code.
ENV PATH=/opt/gpumemprof/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ARG VERSION=dev
LABEL org.opencontainers.image.title="gpumemprof" \
      org.opencontainers.image.description="Which functions of an unmodified program hold GPU memory" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENTRYPOINT ["gpumemprof"]
CMD ["agent"]
