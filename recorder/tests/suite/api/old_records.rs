//! `/v2` and `/v3`: a message with its bytes, and lines of the log.

use serde_json::{Value, json};

use super::fixture::{BEGIN, MESSAGES, NONE, Recording};
use crate::common::{each, plain, text, vectors};

#[test]
fn details_of_messages() {
    let Recording { server, .. } = &Recording::new();
    for path in [
        "/v2/p2p/6",
        "/v3/message/6",
        "/v2/p2p/6/",
        "/v2/p2p/6?node_name=9732",
    ] {
        let details = server.json(path);
        let operation = each(&vectors()["messages"])
            .find(|m| m["kind"] == "operation")
            .unwrap();
        let plain: Vec<_> = plain(operation)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            details,
            json!({"id": 6, "message": details["message"], "original_bytes": vec!["01"; 20], "decrypted_bytes": plain,
                   "error": null})
        );
        let (wanted, found) = (
            &operation["json"]["Operation"],
            &details["message"]["Operation"],
        );
        for (name, value) in wanted.as_object().unwrap() {
            assert_eq!(&found[name], value, "{name}");
        }
    }
    let broken = server.json(&format!("/v2/p2p/{}", MESSAGES - 1));
    assert_eq!(broken["message"], Value::Null);
    assert_eq!(
        broken["decrypted_bytes"],
        json!(["00", "00", "00", "04", "00", "31", "01", "02"])
    );
    assert!(text(&broken["error"]).len() > 5, "{broken}");
    let connection = server.json("/v2/p2p/0");
    assert_eq!(
        connection["message"]["version"]["chain_name"],
        "TEZOS_MAINNET"
    );
    assert_eq!(connection["original_bytes"][0], "00");
    assert_eq!(server.json("/v2/p2p/99999"), Value::Null);
    assert_eq!(server.json("/v2/p2p/6?node_name=initiator"), Value::Null);
}

#[test]
fn lines_of_the_log() {
    let Recording { server, .. } = &Recording::new();
    let rows = server.json("/v2/log?limit=2");
    assert_eq!(
        rows[1],
        json!({"id": 18, "level": "Warning", "timestamp": BEGIN + 18_000_000_000, "section": "p2p",
               "message": "line 18 of \"peer\" "})
    );
    let warnings = [18, 15, 12, 9, 6, 3, 0];
    for parameter in [
        "log_level=warn",
        "log_level=WARNING",
        "level=Warning",
        "log_level=warn,fatal",
    ] {
        assert_eq!(
            server.ids(&format!("/v2/log?{parameter}")),
            warnings,
            "{parameter}"
        );
    }
    assert_eq!(server.ids("/v2/log?log_level=warn,info").len(), 20);
    assert_eq!(server.ids("/v2/log?log_level=error"), NONE);
    let second = BEGIN / 1_000_000_000;
    assert_eq!(
        server.ids(&format!("/v2/log?from={}&to={}", second + 4, second + 6)),
        [6, 5, 4]
    );
    let jump = format!("/v3/logs?timestamp={}&limit=2", (second + 4) * 1000);
    assert_eq!(server.ids(&jump), [4, 3]);
    assert_eq!(server.ids(&format!("{jump}&direction=forward")), [5, 6]);
    assert_eq!(server.ids(&format!("{jump}&log_level=warn")), [3, 0]);
    assert_eq!(server.ids("/v2/log?query=seven"), [7]);
    assert_eq!(
        server.ids("/v2/log?query=%22seven%22&query_no_quotes=true"),
        [7]
    );
    assert_eq!(server.ids("/v2/log?query=%2Bseven%20-peer"), NONE);
    assert_eq!(server.ids("/v2/log?query=peer&cursor=3&limit=2"), [3, 2]);
}
