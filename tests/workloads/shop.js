// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A service that remembers each request. Each line on stdin is a number of requests, which it answers with `ok`.

const sessions = [];

function remember(user) {
  const cart = new Uint8Array(300000).fill(1); // the leak
  sessions.push({ user, cart });
}

function handle(user) {
  remember(user);
}

require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
  for (let user = 0; user < Number(line); user++) handle(user);
  console.log('ok');
});
console.log('ready');
