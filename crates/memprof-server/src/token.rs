//! The bearer token that requests must carry (`--token-file`).

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

/// Minimum and maximum length of a token, in bytes. 16 random letters are infeasible to guess.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=1024;
const ADVICE: &str = "`(umask 077 && openssl rand -hex 32 >FILE)` makes a file with one";

/// A secret that clients must present; never printed.
pub struct Token(Vec<u8>);

impl Token {
    /// Reads the first and only line of a file that only its owner can read.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or its contents are not a token.
    pub fn read(path: &Path) -> Result<Token> {
        let shown = path.display();
        let file =
            File::open(path).with_context(|| format!("cannot open the token file {shown}"))?;
        let about = file
            .metadata()
            .with_context(|| format!("cannot inspect the token file {shown}"))?;
        if about.is_file() && about.mode() & 0o077 != 0 {
            let mode = about.mode() & 0o777;
            bail!(
                "other users may access the token file {shown} (mode {mode:o}): `chmod 600 {shown}` makes it private"
            );
        }
        let mut text = Vec::new();
        file.take(*LENGTHS.end() as u64 + 3)
            .read_to_end(&mut text)
            .with_context(|| format!("cannot read the token file {shown}"))?;
        Token::parse(&text).with_context(|| format!("cannot use the token file {shown}"))
    }

    fn parse(text: &[u8]) -> Result<Token> {
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if !LENGTHS.contains(&line.len()) {
            let (least, most) = (LENGTHS.start(), LENGTHS.end());
            bail!("a token has {least} to {most} characters; {ADVICE}");
        }
        // RFC 6750, 2.1.
        let permitted = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b);
        if !line.iter().all(permitted) {
            bail!("a token is one line of letters, digits and -._~+/= alone; {ADVICE}");
        }
        Ok(Token(line.to_vec()))
    }

    /// Whether a request carries this token: `Authorization: Bearer TOKEN`, exactly once.
    pub(super) fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        let mut shown = headers.get_all(AUTHORIZATION).iter();
        let (Some(shown), None) = (shown.next(), shown.next()) else {
            return false;
        };
        let Some((scheme, token)) = shown.as_bytes().split_first_chunk::<7>() else {
            return false;
        };
        // The comparison takes constant time, independent of how many bytes match.
        scheme.eq_ignore_ascii_case(b"bearer ") && token.ct_eq(&self.0).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_the_right_token_is_accepted() {
        let token = Token::parse(format!("{TOKEN}\n").as_bytes()).unwrap();
        for good in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef"] {
            assert!(token.is_shown_in(&headers(&[good])), "{good}");
        }
        for bad in [
            &[][..],
            &["Bearer"],
            &["Bearer "],
            &["Bearer 0123456789abcde"],
            &["Bearer 0123456789abcdefg"],
            &["Bearer 0123456789abcdeF"],
            &["Basic 0123456789abcdef"],
            &["0123456789abcdef"],
            &["Bearer  0123456789abcdef"],
            &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
        ] {
            assert!(!token.is_shown_in(&headers(bad)), "{bad:?}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for bad in [
            "",
            "\n",
            "short",
            "0123456789 abcdef",
            "0123456789abcdef\n\n",
            "ä123456789abcdef",
        ] {
            let said = format!("{:#}", Token::parse(bad.as_bytes()).unwrap_err());
            assert!(said.contains("openssl"), "{bad:?}: {said}");
        }
        assert!(Token::parse(&[b'a'; 1025]).is_err());
        assert!(Token::parse(&[b'a'; 1024]).is_ok());
        assert!(Token::parse(b"0123456789abcdef\r\n").is_ok());
    }

    #[test]
    fn the_file_must_be_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let none = format!("{:#}", Token::read(&path).unwrap_err());
        assert!(none.contains("cannot open"), "{none}");
        fs::write(&path, TOKEN).unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = Token::read(&path);
            assert_eq!(read.is_ok(), good, "{mode:o}");
            if let Err(why) = read {
                assert!(why.to_string().contains("chmod 600"), "{why}");
            }
        }
    }
}
