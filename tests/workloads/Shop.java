// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A service that remembers each request. Each line on stdin is a number of requests, which it answers with `ok`.

import java.io.BufferedReader;
import java.io.InputStreamReader;

public class Shop {
    static final byte[][] sessions = new byte[100_000][];
    static int count;

    static void remember() {
        sessions[count++] = new byte[2000];
    }

    static void handle(int requests) {
        for (int n = 0; n < requests; n++) {
            remember();
        }
    }

    public static void main(String[] args) throws Exception {
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            handle(Integer.parseInt(line));
            System.out.println("ok");
        }
    }
}
