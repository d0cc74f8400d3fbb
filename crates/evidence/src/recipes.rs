//! The programs that are recorded: their sources, their commands, and the processes whose samples
//! count.
//!
//! `sh -e` runs the scripts, each in its own folder, with these variables: `P`, the sources beside
//! this crate; `S`, the number of seconds; `PORT`, an unused port.

/// A program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// Commands and files that it requires; it is skipped without them.
    pub(crate) needs: &'static [&'static str],
    /// Names of the processes whose samples count.
    pub(crate) processes: &'static [&'static str],
    /// The script that runs once, and is not recorded.
    pub(crate) prepare: &'static str,
    /// The recorded script.
    pub(crate) run: &'static str,
}

const fn recipe(
    name: &'static str,
    needs: &'static [&'static str],
    processes: &'static [&'static str],
    prepare: &'static str,
    run: &'static str,
) -> Recipe {
    Recipe {
        name,
        needs,
        processes,
        prepare,
        run,
    }
}

/// Makes a video for encoders, of this many seconds.
macro_rules! video {
    ($seconds:literal) => {
        concat!(
            "ffmpeg -v quiet -y -f lavfi -i testsrc2=size=640x360:rate=30 -t ",
            $seconds,
            " -pix_fmt yuv420p video.y4m"
        )
    };
}

/// The program of the tests that leaves frames.
macro_rules! leaves {
    () => {
        "$P/../../testkit/programs/leaves.cc"
    };
}

/// All programs.
pub(crate) const RECIPES: &[Recipe] = &[
    // Code made at run time.
    recipe("node", &["node"], &["node"], "", "exec node $P/work.js $S"),
    recipe(
        "node-perf-map",
        &["node"],
        &["node"],
        "",
        "exec node --perf-basic-prof $P/work.js $S",
    ),
    recipe(
        "java",
        &["java", "javac"],
        &["java"],
        "javac -d . $P/Work.java",
        "exec java -cp . Work $S",
    ),
    recipe(
        "java-frame-pointer",
        &["java", "javac"],
        &["java"],
        "javac -d . $P/Work.java",
        "exec java -XX:+PreserveFramePointer -cp . Work $S",
    ),
    recipe(
        "java-map",
        &["java", "javac"],
        &["java"],
        "javac -d . $P/Work.java",
        "exec java -XX:+PreserveFramePointer -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit -cp . Work $S",
    ),
    recipe("luajit", &["luajit"], &["luajit"], "", "exec luajit $P/work.lua $S"),
    recipe("php", &["php"], &["php"], "", "exec php $P/work.php $S"),
    recipe(
        "php-jit",
        &["php"],
        &["php"],
        "",
        "exec php -d opcache.enable_cli=1 -d opcache.jit=tracing -d opcache.jit_buffer_size=64M $P/work.php $S",
    ),
    recipe(
        "erlang",
        &["erl", "erlc"],
        &["beam.smp"],
        "erlc $P/work.erl",
        "exec erl -noshell -run work main $S -s init stop",
    ),
    recipe(
        "guile",
        &["guile"],
        &["guile"],
        "guile --no-auto-compile -c 1",
        "exec guile --no-auto-compile $P/work.scm $S",
    ),
    recipe(
        "sbcl",
        &["sbcl"],
        &["sbcl"],
        "",
        "exec sbcl --noinform --non-interactive --load $P/work.lisp --eval \"(run $S)\"",
    ),
    recipe(
        "chromium-headless",
        &["chromium-headless-shell"],
        &[
            "chromium-headle",
            "chromium-headless-shell",
            "headless_shell",
            "chromium",
            "chrome",
        ],
        "",
        "exec chromium-headless-shell --no-sandbox --disable-gpu --timeout=${S}000 --dump-dom file://$P/page.html > /dev/null",
    ),
    // Interpreters.
    recipe(
        "python",
        &["/usr/bin/python3"],
        &["python3"],
        "",
        "exec /usr/bin/python3 $P/work.py $S",
    ),
    recipe("ruby", &["ruby"], &["ruby"], "", "exec ruby $P/work.rb $S"),
    recipe("perl", &["perl"], &["perl"], "", "exec perl $P/work.pl $S"),
    recipe("lua", &["lua5.4"], &["lua5.4", "lua"], "", "exec lua5.4 $P/work.lua $S"),
    recipe(
        "numpy",
        &["/usr/bin/python3", "/usr/lib/python3/dist-packages/numpy/__init__.py"],
        &["python3"],
        "",
        "exec /usr/bin/python3 $P/arrays.py $S",
    ),
    recipe("R", &["Rscript"], &["R"], "", "exec Rscript $P/work.R $S"),
    recipe(
        "octave",
        &["octave-cli"],
        &["octave-cli", "octave-cli-7.3.", "octave-cli-7.3"],
        "",
        "exec octave-cli --no-gui $P/work.m $S",
    ),
    recipe(
        "sqlite",
        &["sqlite3"],
        &["sqlite3"],
        "",
        "exec timeout $S sqlite3 :memory: \"WITH RECURSIVE t(n, s) AS (SELECT 1, 'a' UNION ALL SELECT n + 1, hex(n * 7919 % 1009) FROM t LIMIT 40000000) \
         SELECT s, count(*), sum(n) FROM t WHERE s LIKE '%3%' GROUP BY s ORDER BY 2;\" > /dev/null || true",
    ),
    // Compiled languages.
    recipe(
        "go",
        &["go"],
        &["work"],
        "cp $P/work.go . && go build -o work work.go",
        "exec ./work $S",
    ),
    recipe(
        "go-stripped",
        &["go"],
        &["work"],
        "cp $P/work.go . && go build -ldflags='-s -w' -o work work.go",
        "exec ./work $S",
    ),
    recipe(
        "cgo",
        &["go", "gcc"],
        &["work"],
        "cp $P/cgo.go . && CGO_ENABLED=1 go build -o work cgo.go",
        "exec ./work $S",
    ),
    recipe(
        "go-clock",
        &["go"],
        &["work"],
        "cp $P/clock.go . && go build -o work clock.go",
        "exec ./work $S",
    ),
    recipe(
        "ocaml",
        &["ocamlopt"],
        &["work"],
        "cp $P/work.ml . && ocamlopt -w -a -I +unix unix.cmxa work.ml -o work",
        "exec ./work $S",
    ),
    recipe(
        "ghc",
        &["ghc"],
        &["work"],
        "cp $P/work.hs . && ghc -O -package containers work.hs -o work",
        "exec ./work $S",
    ),
    recipe(
        "rustc",
        &["rustc"],
        &["rustc"],
        "",
        "for i in 1 2 3; do rustc --edition 2021 -O -C codegen-units=4 -o heavy $P/heavy.rs; done",
    ),
    recipe(
        "clang-lld",
        &["clang++", "ld.lld"],
        &["clang++", "clang-14", "clang", "ld.lld", "lld"],
        "",
        "for i in 1 2; do clang++ -std=c++20 -O2 -g -fuse-ld=lld -o heavy $P/heavy.cc; done",
    ),
    recipe(
        "g++",
        &["g++"],
        &["cc1plus", "as", "ld", "collect2"],
        "",
        "g++ -std=c++20 -O2 -g -o heavy $P/heavy.cc",
    ),
    recipe(
        "make-j8",
        &["make", "gcc"],
        &["make", "cc1", "as", "gcc", "ld", "collect2", "sh"],
        "printf 'all: $(patsubst %%,%%.o,$(shell seq 60))\\nMakefile: ;\\n%%.o:\\n\\tgcc -O2 -c -o $@ $(P)/work.c\\n' > Makefile",
        "make -s -r -B -j8",
    ),
    recipe(
        "cargo-build",
        &["cargo"],
        &["cargo", "rustc", "cc", "ld", "build-script-bu"],
        "cp -r $P/tokio . && cd tokio && cargo fetch -q",
        "cd tokio && rm -rf target && exec cargo build -q",
    ),
    recipe(
        "tokio",
        &["cargo"],
        &["tokio_work"],
        "cp -r $P/tokio . && cd tokio && cargo build -q --release",
        "exec tokio/target/release/tokio_work $S",
    ),
    recipe(
        "coroutines-c++20",
        &["g++"],
        &["coroutines"],
        "g++ -std=c++20 -O2 -o coroutines $P/coroutines.cc",
        "exec ./coroutines $S",
    ),
    recipe(
        "boost-context",
        &["g++", "/usr/include/boost/context/fiber.hpp"],
        &["boost_context"],
        "g++ -std=c++17 -O2 -o boost_context $P/boost_context.cc -lboost_context",
        "exec ./boost_context $S",
    ),
    recipe(
        "makecontext",
        &["gcc"],
        &["makecontext"],
        "gcc -O2 -o makecontext $P/makecontext.c",
        "exec ./makecontext $S",
    ),
    // Frames that are left at once.
    recipe(
        "exceptions",
        &["g++"],
        &["leaves"],
        concat!("g++ -O2 -o leaves ", leaves!()),
        "exec ./leaves $S exceptions",
    ),
    recipe(
        "exceptions-frame-pointer",
        &["g++"],
        &["leaves"],
        concat!("g++ -O2 -fno-omit-frame-pointer -o leaves ", leaves!()),
        "exec ./leaves $S exceptions",
    ),
    recipe(
        "longjmp",
        &["g++"],
        &["leaves"],
        concat!("g++ -O2 -o leaves ", leaves!()),
        "exec ./leaves $S jumps",
    ),
    recipe(
        "setcontext",
        &["g++"],
        &["leaves"],
        concat!("g++ -O2 -o leaves ", leaves!()),
        "exec ./leaves $S contexts",
    ),
    recipe(
        "rust-panics",
        &["rustc"],
        &["panics"],
        "rustc -O -o panics $P/panics.rs",
        "exec ./panics $S",
    ),
    recipe(
        "threads-1ms",
        &["gcc"],
        &["threads_1ms"],
        "gcc -O2 -pthread -o threads_1ms $P/threads_1ms.c",
        "exec ./threads_1ms $S",
    ),
    recipe(
        "static",
        &["gcc"],
        &["work"],
        "gcc -O2 -static -o work $P/work.c -lm",
        "exec ./work $S",
    ),
    recipe(
        "static-pie",
        &["gcc"],
        &["work"],
        "gcc -O2 -static-pie -o work $P/work.c -lm",
        "exec ./work $S",
    ),
    recipe(
        "musl",
        &["musl-gcc"],
        &["work"],
        "musl-gcc -O2 -o work $P/work.c",
        "exec ./work $S",
    ),
    recipe(
        "musl-static",
        &["musl-gcc"],
        &["work"],
        "musl-gcc -O2 -static -o work $P/work.c",
        "exec ./work $S",
    ),
    recipe(
        "busybox-static",
        &["busybox"],
        &["busybox", "sha256sum", "awk", "sort", "gzip"],
        "",
        "timeout $S busybox sh -c 'while :; do busybox seq 200000 | busybox sort -n | busybox gzip | busybox sha256sum; done' > /dev/null || true",
    ),
    recipe(
        "upx",
        &["upx", "gcc"],
        &["work"],
        "gcc -O2 -o plain $P/work.c -lm && upx -q -f -o work plain",
        "exec ./work $S",
    ),
    // Programs of distributions.
    recipe(
        "ffmpeg-x264",
        &["ffmpeg"],
        &["ffmpeg"],
        "",
        "exec ffmpeg -v quiet -y -f lavfi -i testsrc2=size=640x360:rate=60 -t 8 -c:v libx264 -preset medium -f null -",
    ),
    recipe(
        "openssl-aes-128-gcm",
        &["openssl"],
        &["openssl"],
        "",
        "exec openssl speed -seconds 1 -evp aes-128-gcm",
    ),
    recipe(
        "openssl-aes-256-cbc",
        &["openssl"],
        &["openssl"],
        "",
        "exec openssl speed -seconds 1 -evp aes-256-cbc",
    ),
    recipe(
        "openssl-chacha20",
        &["openssl"],
        &["openssl"],
        "",
        "exec openssl speed -seconds 1 -evp chacha20-poly1305",
    ),
    recipe(
        "openssl-sha256",
        &["openssl"],
        &["openssl"],
        "",
        "exec openssl speed -seconds 1 -evp sha256",
    ),
    recipe(
        "openssl-rsa",
        &["openssl"],
        &["openssl"],
        "",
        "exec openssl speed -seconds 2 rsa2048 ecdsap256",
    ),
    recipe(
        "postgresql-pgbench",
        &["/usr/lib/postgresql/15/bin/postgres", "setpriv"],
        &["postgres"],
        "rm -rf data; mkdir data; chown postgres data; B=/usr/lib/postgresql/15/bin; \
         as='setpriv --reuid=postgres --regid=postgres --clear-groups'; \
         (cd / && $as $B/initdb -D $OLDPWD/data -A trust > /dev/null)",
        "B=/usr/lib/postgresql/15/bin; as='setpriv --reuid=postgres --regid=postgres --clear-groups'; \
         D=$PWD/data; cd /; $as $B/postgres -D $D -p $PORT -k /tmp -c listen_addresses= > /dev/null 2>&1 & server=$!; \
         sleep 1.5; pgbench -h /tmp -p $PORT -U postgres -i -s 2 -q postgres > /dev/null 2>&1; \
         pgbench -h /tmp -p $PORT -U postgres -c 4 -T $S postgres > /dev/null 2>&1; kill -INT $server; wait $server || true",
    ),
    recipe(
        "nginx",
        &["nginx", "ab"],
        &["nginx"],
        "printf 'user root; daemon off; worker_processes 2; pid nginx.pid; error_log /dev/null; events {} \
         http { access_log off; gzip on; gzip_min_length 1; gzip_types *; server { listen 127.0.0.1:%s; root %s; } }' $PORT $PWD > nginx.conf; \
         seq 5000 > page.txt",
        "nginx -p $PWD -c $PWD/nginx.conf & server=$!; sleep 0.5; \
         ab -q -c 8 -t $S -n 10000000 -H 'Accept-Encoding: gzip' http://127.0.0.1:$PORT/page.txt > /dev/null 2>&1; kill $server; wait $server || true",
    ),
    recipe(
        "redis",
        &["redis-server", "redis-benchmark"],
        &["redis-server"],
        "",
        "redis-server --port $PORT --save '' > /dev/null & server=$!; sleep 0.5; \
         redis-benchmark -p $PORT -n 200000 -q -t set,get,lpush,lrange_100,zadd,hset -P 8 > /dev/null; kill $server; wait $server || true",
    ),
    recipe(
        "memcached",
        &["memcached", "memcslap"],
        &["memcached"],
        "",
        "memcached -u nobody -p $PORT -U 0 -t 4 & server=$!; sleep 0.5; \
         memcslap --servers=127.0.0.1:$PORT --concurrency=8 --execute-number=30000 --test=set > /dev/null; \
         memcslap --servers=127.0.0.1:$PORT --concurrency=8 --execute-number=30000 --test=get > /dev/null; kill $server; wait $server || true",
    ),
    recipe(
        "git",
        &["git"],
        &["git"],
        "rm -rf repo; git init -q repo; cd repo; git config user.email a@b; git config user.name a; \
         for i in $(seq 30); do seq $i $((i * 500)) > file$i; cp $P/* . 2> /dev/null || true; git add -A; git commit -q -m $i; done",
        "cd repo; for i in 1 2 3 4 5 6; do git repack -adfq --depth=100 --window=200; git log -p > /dev/null; git blame file30 > /dev/null; git fsck > /dev/null 2>&1; done",
    ),
    recipe(
        "xz",
        &["xz"],
        &["xz"],
        "seq 3000000 > numbers",
        "exec timeout $S xz -9kc numbers > /dev/null || true",
    ),
    // Further compilers and run-time systems.
    recipe(
        "pascal",
        &["fpc"],
        &["work"],
        "fpc -v0 -O2 -FE. -owork $P/work.pas > /dev/null",
        "timeout $S ./work > /dev/null || true",
    ),
    recipe(
        "ada",
        &["gnatmake"],
        &["work"],
        "gnatmake -q -O2 $P/work.adb -o work",
        "timeout $S ./work > /dev/null || true",
    ),
    recipe(
        "fortran",
        &["gfortran"],
        &["work"],
        "gfortran -O2 -o work $P/work.f90",
        "timeout $S ./work > /dev/null || true",
    ),
    recipe(
        "d",
        &["ldc2"],
        &["work"],
        "ldc2 -O2 -of=work $P/work.d",
        "timeout $S ./work > /dev/null || true",
    ),
    recipe(
        "nim",
        &["nim"],
        &["work"],
        "nim c -d:release --hints:off --nimcache:cache -o:work $P/work.nim > /dev/null",
        "timeout $S ./work > /dev/null || true",
    ),
    recipe(
        "prolog",
        &["swipl"],
        &["swipl"],
        "",
        "timeout $S swipl -q -g run -s $P/work.prolog > /dev/null || true",
    ),
    recipe(
        "clisp",
        &["clisp"],
        &["lisp.run", "clisp"],
        "",
        "timeout $S clisp -q -C -x '(progn (defun fib (n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) (compile (quote fib)) (loop (fib 22)))' > /dev/null || true",
    ),
    recipe(
        "ecl",
        &["ecl"],
        &["ecl"],
        "",
        "timeout $S ecl --norc --eval '(progn (defun fib (n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) (loop (fib 18)))' > /dev/null || true",
    ),
    recipe(
        "gforth",
        &["gforth-fast"],
        &["gforth-fast"],
        "",
        "timeout $S gforth-fast $P/work.fs > /dev/null || true",
    ),
    recipe(
        "mono",
        &["mono", "mcs"],
        &["mono", "mono-sgen"],
        "mcs -out:work.exe $P/work.cs",
        "timeout $S mono work.exe > /dev/null || true",
    ),
    recipe(
        "pypy",
        &["pypy3"],
        &["pypy3", "pypy3.9"],
        "",
        "timeout $S pypy3 $P/work.py 1000 > /dev/null || true",
    ),
    recipe(
        "tcl",
        &["tclsh"],
        &["tclsh", "tclsh8.6"],
        "",
        "timeout $S tclsh $P/work.tcl > /dev/null || true",
    ),
    recipe(
        "ghostscript",
        &["gs"],
        &["gs"],
        "",
        "timeout $S sh -c 'while :; do gs -q -dNOPAUSE -dBATCH -sDEVICE=png16m -r300 -sOutputFile=/dev/null /usr/share/ghostscript/*/examples/tiger.eps; done' || true",
    ),
    recipe(
        "imagemagick",
        &["convert"],
        &["convert", "convert-im6.q16", "convert-im6.q1"],
        "",
        "timeout $S sh -c 'while :; do convert -size 600x600 plasma: -blur 0x4 -resize 1200x1200 null:; done' || true",
    ),
    recipe(
        "deno",
        &["deno"],
        &["deno"],
        "",
        "timeout $S deno eval 'const fib = n => n < 2 ? n : fib(n - 1) + fib(n - 2); for (;;) { fib(24); crypto.randomUUID(); [3, 1, 2].sort() }' > /dev/null || true",
    ),
    recipe(
        "bun",
        &["bun"],
        &["bun", "bun.exe"],
        "",
        "timeout $S bun $P/work.js 1000 > /dev/null || true",
    ),
    recipe(
        "dotnet",
        &["dotnet", "mcs"],
        &["dotnet"],
        "mcs -out:work.dll $P/work.cs && printf '{\"runtimeOptions\":{\"framework\":{\"name\":\"Microsoft.NETCore.App\",\"version\":\"%s\"}}}' $(dotnet --list-runtimes | awk '/NETCore.App/{print $2; exit}') > work.runtimeconfig.json",
        "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 timeout $S dotnet work.dll > /dev/null || true",
    ),
    recipe(
        "raku",
        &["raku"],
        &["raku", "rakudo", "moar"],
        "",
        "timeout $S raku -e 'sub fib($n) { $n < 2 ?? $n !! fib($n - 1) + fib($n - 2) }; loop { fib(20); (^9999).map(* * 3).sort }' > /dev/null || true",
    ),
    recipe(
        "crystal",
        &["crystal"],
        &["work"],
        "printf 'def fib(n)\n  n < 2 ? n : fib(n - 1) + fib(n - 2)\nend\nloop do\n  fib(30)\n  a = (0..30000).map { |x| (x * 7919) %% 30011 }\n  a.sort!\n  spawn { a.sum }\n  Fiber.yield\nend\n' > work.cr && crystal build --release -o work work.cr",
        "timeout $S ./work > /dev/null || true",
    ),
    recipe(
        "maxima",
        &["maxima"],
        &["maxima"],
        "",
        "timeout $S maxima --very-quiet --batch-string='for k thru 9999 do (expand((x+y+z+w)^14), factor(x^60-1), integrate(1/(1+x^4),x));' > /dev/null || true",
    ),
    recipe(
        "gap",
        &["gap"],
        &["gap"],
        "echo 'for i in [1..9999] do G := SymmetricGroup(7); ConjugacyClasses(G); Size(SylowSubgroup(G, 2)); od;' > work.g",
        "timeout $S gap -q work.g > /dev/null || true",
    ),
    recipe(
        "povray",
        &["povray"],
        &["povray"],
        "printf 'sphere { 0, 1 pigment { granite } }\nlight_source { 9 color 1 }\ncamera { location -3*z look_at 0 }\n' > work.pov",
        "timeout $S sh -c 'while :; do povray -D -W900 -H900 +A0.1 -O/dev/null work.pov; done' > /dev/null 2>&1 || true",
    ),
    recipe(
        "x265",
        &["x265", "ffmpeg"],
        &["x265"],
        video!(6),
        "timeout $S sh -c 'while :; do x265 video.y4m -o /dev/null; done' > /dev/null 2>&1 || true",
    ),
    recipe(
        "aomenc",
        &["aomenc", "ffmpeg"],
        &["aomenc"],
        video!(6),
        "timeout $S aomenc --cpu-used=6 -o /dev/null --ivf video.y4m > /dev/null 2>&1 || true",
    ),
    recipe(
        "dav1d",
        &["dav1d", "aomenc", "ffmpeg"],
        &["dav1d"],
        concat!(video!(3), " && aomenc -q --cpu-used=8 -o video.ivf --ivf video.y4m"),
        "timeout $S sh -c 'while :; do dav1d -q -i video.ivf -o /dev/null --muxer null; done' || true",
    ),
];
