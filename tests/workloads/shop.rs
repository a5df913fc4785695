// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A service that remembers each request.
//
//   rustc --edition 2021 -g -o shop-rs shop.rs
//
// Each line on stdin is a number of requests, which it answers with `ok`.

use std::io::BufRead;

struct Session {
    user: String,
    cart: Vec<u8>,
}

#[inline(never)]
fn remember(sessions: &mut Vec<Session>, user: usize) {
    let cart = vec![1; 200_000]; // the leak
    sessions.push(Session {
        user: format!("user {user}"),
        cart,
    });
}

fn main() {
    let mut sessions = Vec::new();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let requests: usize = line.unwrap().parse().unwrap();
        for user in 0..requests {
            remember(&mut sessions, user);
        }
        assert!(sessions
            .iter()
            .all(|session| session.cart.len() > session.user.len()));
        println!("ok");
    }
}
