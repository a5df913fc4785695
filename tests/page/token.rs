//! The token that memprof may ask for.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::common::memprof::{Memprof, run_to_error};
use super::common::workload::{Workload, program};
use crate::common::browser::Browser;

const TOKEN: &str = "a-secret-of-25-characters";

#[test]
fn the_page_has_it_from_its_address_or_asks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, TOKEN).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let file = path.to_str().unwrap();
    let said = run_to_error(&[
        "--pid",
        "1",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        file,
    ]);
    assert!(said.contains("chmod 600"), "{said}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &["--token-file", file]);
    assert!(!m.said("#token=").contains(TOKEN));
    assert_eq!(m.get("/v2/summary").status, 401);

    let browser = Browser::start(m.address());
    browser.open(&format!("#view=functions&token={TOKEN}"));
    assert_eq!(browser.eval("location.hash"), "#view=functions");
    // Live events arrive, and exports are saved, without a header that links could send.
    browser.wait("document.getElementById('connection').textContent === 'live'");
    let saved = "const { save } = await import('./assets/js/token.js'); const link = document.createElement('a'); \
                 link.href = 'v2/export/json'; link.download = 'x'; await save(link); return true";
    let script = format!("return (async () => {{ {saved} }})()");
    assert_eq!(browser.run(&script, json!([])), true);

    // In a new tab it is not known.
    browser.run("sessionStorage.clear()", json!([]));
    browser.load("#view=functions");
    for (token, says) in [
        ("wrong-wrong-wrong-wrong", "requires a token"),
        (TOKEN, "does not accept"),
    ] {
        browser.wait(&format!(
            "document.getElementById('token-why')?.textContent.includes('{says}')"
        ));
        let script = "document.getElementById('token').value = arguments[0]; \
                      document.querySelector('#content form button').click()";
        browser.run(script, json!([token]));
    }
    browser.wait("!!document.querySelector('#totals .total') && !document.getElementById('token')");
    m.interrupt();
    workload.end();
}
