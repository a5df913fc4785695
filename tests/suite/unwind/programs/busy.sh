# Programs at work, each in the process of this shell, in the current directory: sh busy.sh NAME. They go on until they are
# killed, use fresh memory all the time, and end by themselves only if there is no other way. Exit status 3: not installed.

# Ends with status 3 if a program is not there.
need() {
	for program; do
		command -v "$program" >/dev/null || exit 3
	done
}

JS='for (;;) { const m = new Map(); for (let n = 0; n < 30000; n++) { const k = "k" + n * 7919 % 5003; if (!m.has(k)) m.set(k, []); m.get(k).push({ n, s: String(n).repeat(3) }); }
	const l = [...m].sort((a, b) => a[0] < b[0] ? -1 : 1); const t = JSON.stringify(l); JSON.parse(t); t.slice(0, 100000).replace(/[0-9]+/g, d => d.length); new Uint8Array(1 << 20).fill(1); }'

case $1 in
perl)
	need perl
	exec perl -e 'while (1) { my %h; for my $n (1 .. 20000) { push @{$h{$n % 500}}, join ",", map { sprintf "%x", $_ * $n } 1 .. 5; }
		my @s = sort { @{$h{$a}} <=> @{$h{$b}} || $a cmp $b } keys %h; my $t = join " ", map { @{$h{$_}} } @s; $t =~ s/([0-9a-f]+),/<$1>/g; }'
	;;
python)
	need python3
	exec python3 -c '
import json, re, zlib
while True:
    d = [{"n": n, "s": str(n) * 5, "l": list(range(n % 50))} for n in range(20000)]
    t = json.dumps(sorted(d, key=lambda e: e["s"]))
    json.loads(t)
    re.sub("[0-9]+", lambda m: m.group()[::-1], t[:200000])
    zlib.compress(t.encode())'
	;;
git)
	need git
	git init -q .
	# Versions of a text that differ in each line, and have much in common.
	awk 'BEGIN { for (n = 1; n <= 2000; n++) { t = ""; for (i = 0; i < 1000; i++) t = t (i * 7919 + int(i * n / 1000)) "\n"; printf "blob\ndata %d\n%s\n", length(t), t } }' | git fast-import --quiet
	git cat-file --batch-all-objects --batch-check='%(objectname)' > objects
	exec git -c pack.threads=2 pack-objects --no-reuse-delta --window=250 --depth=250 --stdout -q < objects > /dev/null
	;;
nginx)
	need nginx python3
	mkdir -p logs && seq 100000 > page
	cat > nginx.conf <<-END
		daemon off; master_process off; error_log stderr; pid nginx.pid;
		events { worker_connections 512; }
		http { access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
		  gzip on; gzip_types *;
		  server { listen unix:$PWD/socket; root $PWD; ssi on; ssi_types *; keepalive_requests 100; } }
	END
	python3 -c '
import socket, sys, time
def ask(open):
    s = socket.socket(socket.AF_UNIX); s.connect("socket")
    s.sendall(b"GET /page HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n"); open.append(s)
time.sleep(1)
while True:
    try:
        open = []
        for _ in range(100): ask(open)
        for s in open:
            while s.recv(1 << 20): pass
    except OSError: time.sleep(.1)' &
	exec nginx -p "$PWD" -c "$PWD/nginx.conf"
	;;
php)
	need php
	exec php -r 'while (1) { $a = []; for ($n = 0; $n < 30000; $n++) { $a["k" . ($n % 5000)][] = md5((string)$n) . str_repeat("x", $n % 64); }
		uasort($a, fn($x, $y) => strcmp($x[0], $y[0])); $t = json_encode($a); json_decode($t, true); preg_replace_callback("/[0-9a-f]{8}/", fn($m) => strrev($m[0]), substr($t, 0, 200000)); }'
	;;
luajit)
	need luajit
	exec luajit -e 'local t = {} while true do t = {} for n = 1, 50000 do t[n] = { n = n, s = ("%d:%x"):format(n, n * 7) } end
		table.sort(t, function(a, b) return a.s < b.s end)
		local p = {} for n = 1, #t do p[n] = t[n].s:gsub("%d", function(d) return d + 1 end) end table.concat(p, ",") end'
	;;
ocaml)
	need ocamlopt
	cat > busy.ml <<-END
		module M = Map.Make(String)
		let rec build n m = if n = 0 then m else build (n - 1) (M.add (string_of_int (n * 7919 mod 100003)) (List.init 20 (fun i -> i * n)) m)
		let () = while true do
		  let m = build 20000 M.empty in
		  let s = M.fold (fun k v a -> (k, List.fold_left (+) 0 v) :: a) m [] in
		  let s = List.sort (fun (_, a) (_, b) -> compare a b) s in
		  ignore (String.concat "," (List.map (fun (k, v) -> Printf.sprintf "%s=%d" k v) s)); ignore (Array.make 100000 1.5)
		done
	END
	ocamlopt -g busy.ml -o busy && exec ./busy
	;;
sbcl)
	need sbcl
	exec sbcl --noinform --disable-debugger --eval '
(defun work (n) (let ((h (make-hash-table :test (quote equal)))) (dotimes (i n) (push (make-array 10 :initial-element i) (gethash (format nil "~x" (mod (* i 7919) 5003)) h)))
  (let (l) (maphash (lambda (k v) (push (cons k (length v)) l)) h) (sort l (function string<) :key (function car)))))' --eval '(loop (work 20000))'
	;;
ghc)
	need ghc
	cat > busy.hs <<-END
		import qualified Data.Map as M
		import Data.List (sort, foldl')
		work :: Int -> Int
		work n = sum (map length (sort (M.elems m))) where m = foldl' (\\a i -> M.insertWith (++) (show (i * 7919 \`mod\` 5003)) [i, n] a) M.empty [1 .. 20000]
		main :: IO ()
		main = mapM_ (\\n -> print (work n)) [1 ..]
	END
	ghc -O1 busy.hs -o busy && exec ./busy > /dev/null
	;;
erlang)
	need erl
	export ROOTDIR=$(erl -noshell -eval 'io:format("~s", [code:root_dir()]), halt().') EMU=beam PROGNAME=erl
	export BINDIR=$(echo "$ROOTDIR"/erts-*/bin)
	exec "$BINDIR/beam.smp" -S 2 -- -root "$ROOTDIR" -bindir "$BINDIR" -progname erl -- -home "$PWD" -- -noshell -eval '
W = fun W(N) -> M = lists:foldl(fun(I, A) -> maps:put(integer_to_list(I * 7919 rem 5003), lists:seq(1, I rem 50), A) end, #{}, lists:seq(1, 20000)),
  L = lists:sort(maps:to_list(M)), B = term_to_binary(L, [compressed]), binary_to_term(B), re:replace(io_lib:format("~p", [lists:sublist(L, 100)]), "[0-9]+", "x", [global]), W(N + 1) end,
spawn(fun() -> W(0) end), W(0).'
	;;
mono)
	need mono mcs
	cat > busy.cs <<-END
		using System; using System.Collections.Generic; using System.Linq; using System.Text;
		class Busy { static void Main() { for (;;) { var d = new Dictionary<string, List<int>>();
		  for (int i = 0; i < 50000; i++) { var k = (i * 7919L % 5003).ToString(); if (!d.ContainsKey(k)) d[k] = new List<int>(); d[k].Add(i); }
		  var s = new StringBuilder(); foreach (var e in d.OrderBy(e => e.Key)) s.Append(e.Key).Append(e.Value.Sum(v => (long)v)); var b = new byte[1 << 20]; b[5] = 1; GC.KeepAlive(b); } } }
	END
	mcs busy.cs && exec mono busy.exe
	;;
r)
	need R
	export R_HOME=$(R RHOME) LD_LIBRARY_PATH=$(R RHOME)/lib
	exec "$R_HOME/bin/exec/R" --vanilla --no-echo -e 'while (TRUE) { d <- data.frame(x = runif(20000), g = sample(letters, 20000, TRUE)); a <- aggregate(x ~ g, d, mean); m <- lm(x ~ g, d); s <- sapply(strsplit(paste(d$g, collapse = ""), "")[[1]], toupper); q <- solve(crossprod(matrix(rnorm(40000), 200))) }'
	;;
octave)
	need octave-cli
	exec octave-cli --norc --no-history --eval 'while true, a = rand(300); b = a \ a; c = {}; for n = 1:500, c{n} = sprintf("%d:%g", n, b(n)); end, s = strjoin(sort(c), ","); t = regexprep(s, "[0-9]", "x"); f = fft(rand(1, 65536)); q = cellfun(@(x) [x "y"], c, "UniformOutput", false); end'
	;;
guile)
	need guile
	exec guile --no-auto-compile -c '(use-modules (srfi srfi-1)) (define (work n) (let ((h (make-hash-table))) (do ((i 0 (+ i 1))) ((= i n)) (hash-set! h (number->string (modulo (* i 7919) 5003)) (iota (modulo i 50))))
  (sort (hash-map->list (lambda (k v) (cons k (fold + 0 v))) h) (lambda (a b) (string<? (car a) (car b)))))) (let loop () (work 20000) (loop))'
	;;
ffmpeg)
	need ffmpeg
	exec ffmpeg -nostdin -v error -f lavfi -i testsrc2=size=640x480:rate=50 -f lavfi -i sine -c:v libx264 -preset medium -c:a aac -f null -
	;;
nvim)
	need nvim
	exec nvim --headless -u NONE -i NONE -c 'lua while true do local l = {} for n = 1, 5000 do l[n] = ("line %d %x"):format(n, n * 7919) end vim.api.nvim_buf_set_lines(0, 0, -1, false, l) vim.cmd("silent! %s/\\d\\+/<&>/g") vim.cmd("sort! /x/") vim.cmd("undo") vim.fn.map(vim.fn.range(5000), "v:val * 2") end'
	;;
emacs)
	need emacs
	exec emacs -Q --batch --eval '(while t (with-temp-buffer (dotimes (n 5000) (insert (format "line %d %x\n" n (* n 7919)))) (goto-char (point-min)) (while (re-search-forward "[0-9]+" nil t) (replace-match "<\\&>")) (sort-lines nil (point-min) (point-max)) (split-string (buffer-string) "\n")))'
	;;
mariadb)
	need mariadbd mariadb-install-db
	mariadb-install-db --no-defaults --user=root --datadir="$PWD/data" --auth-root-authentication-method=normal --skip-test-db > /dev/null
	cat > init.sql <<-END
		CREATE DATABASE d; USE d; CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, s VARCHAR(200), n DOUBLE, KEY (s));
		CREATE DEFINER='root'@'localhost' EVENT e ON SCHEDULE EVERY 1 SECOND DO BEGIN DECLARE i INT DEFAULT 0; WHILE i < 100000 DO INSERT INTO t (s, n) SELECT REPEAT(MD5(i), 5), RAND() FROM seq_1_to_50; SELECT MAX(c) INTO @x FROM (SELECT s, n, COUNT(*) c FROM (SELECT s, n FROM t ORDER BY n LIMIT 20000) q GROUP BY s) r; SET i = i + 1; END WHILE; END;
	END
	tr '\n' ' ' < init.sql | sed 's/;  *CREATE DEFINER/;\nCREATE DEFINER/; s/; USE/;\nUSE/; s/; CREATE TABLE/;\nCREATE TABLE/' > init && mv init init.sql
	exec mariadbd --no-defaults --user=root --datadir="$PWD/data" --socket="$PWD/socket" --skip-networking --event-scheduler=ON --init-file="$PWD/init.sql" --secure-file-priv=
	;;
clang)
	need clang
	c=$(readlink -f "$(command -v clang)")
	printf '#include <regex>\n#include <map>\n#include <iostream>\n#include <algorithm>\nint main() { std::map<std::string, std::regex> m; m["a"] = std::regex("[0-9]+"); for (auto &e : m) std::cout << std::regex_replace("a12", e.second, "x"); }\n' > busy.cc
	exec "$c" -cc1 $(clang -### -O2 -flto -c -x c++ busy.cc 2>&1 | sed -n 's/.*"-cc1"//p' | tr -d '"')
	;;
qemu)
	need qemu-system-x86_64
	# A boot sector that fills segment after segment with its counter: mov es, ax; xor di, di; mov cx, di; not cx; rep stosb;
	# inc ax; or ah, 0x10; and ah, 0x7f; jmp.
	{ printf '\216\300\061\377\211\371\367\321\363\252\100\200\314\020\200\344\177\353\355'; head -c 491 /dev/zero; printf '\125\252'; } > disk
	exec qemu-system-x86_64 -accel tcg -m 64 -nodefaults -display none -drive file=disk,format=raw
	;;
tcl)
	need tclsh
	printf 'while 1 { set d [dict create]; for {set n 0} {$n < 20000} {incr n} { dict lappend d [expr {$n * 7919 %% 5003}] [format %%x $n] }\nset l [lsort -command {string compare} [dict keys $d]]; regsub -all {[0-9]+} [join $l ,] <&> t; split $t , }\n' > busy.tcl
	exec tclsh busy.tcl
	;;
go)
	go=${MEMPROF_TEST_GO:-go}
	need "$go" cc
	cat > busy.go <<-END
		package main
		/*
		#include <stdlib.h>
		#include <string.h>
		extern int ordered(void *, void *);
		static int by(const void *a, const void *b) { return ordered((void *)a, (void *)b); }
		static void sort(int *v, int n) { qsort(v, n, sizeof(*v), by); }
		static void touch(int n) { char *p = malloc(n); memset(p, 1, n); free(p); }
		*/
		import "C"
		import ("fmt"; "sort"; "strings"; "unsafe")
		//export ordered
		func ordered(a, b unsafe.Pointer) C.int { return *(*C.int)(a) - *(*C.int)(b) }
		func work() {
			for {
				m := map[string][]int{}
				for i := 0; i < 20000; i++ { k := fmt.Sprint(i * 7919 % 5003); m[k] = append(m[k], i) }
				var l []string
				for k := range m { l = append(l, k) }
				sort.Strings(l)
				_ = strings.Split(strings.Join(l, ","), ",")
				v := make([]C.int, 3000)
				for i := range v { v[i] = C.int(i * 7919 % 5003) }
				C.sort(&v[0], C.int(len(v)))
				C.touch(1 << 20)
			}
		}
		func main() { go work(); go work(); work() }
	END
	GO111MODULE=off GOCACHE=$PWD/cache "$go" build -o busy busy.go && exec ./busy
	;;
greenlet)
	need python3
	python3 -c 'import greenlet' || exit 3
	exec python3 -c '
import greenlet, json
def deep(n, other):
    if n: return deep(n - 1, other)
    while True:
        d = sorted(([str(i) * 3, list(range(i % 20))] for i in range(3000)), key=lambda e: e[0])
        json.loads(json.dumps(d))
        other[0].switch()
others = [[None], [None]]
a, b = (greenlet.greenlet(lambda n=n, o=o: deep(n, o)) for n, o in zip((3, 30), others))
others[0][0], others[1][0] = b, a
a.switch()'
	;;
boost)
	need c++
	cat > busy.cc <<-END
		#include <boost/context/fiber.hpp>
		#include <algorithm>
		#include <string>
		#include <vector>
		namespace ctx = boost::context;
		static void work() {
			std::vector<std::string> v;
			for (int i = 0; i < 2000; i++) v.push_back(std::to_string(i * 7919 % 5003) + std::string(i % 200, 120));
			std::sort(v.begin(), v.end());
		}
		int main() {
			auto body = [](ctx::fiber &&back) { for (;;) { work(); back = std::move(back).resume(); } return std::move(back); };
			ctx::fiber a{body}, b{body};
			for (;;) { a = std::move(a).resume(); work(); b = std::move(b).resume(); }
		}
	END
	c++ -O2 -std=c++17 busy.cc -o busy -lboost_context || exit 3
	exec ./busy
	;;
bun)
	need bun
	exec bun -e "$JS"
	;;
deno)
	need deno
	exec deno eval "$JS"
	;;
esac
exit 3
