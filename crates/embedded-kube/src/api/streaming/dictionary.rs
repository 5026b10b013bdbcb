//! The dictionary that SPDY/3 header blocks are compressed with (section 2.6.10.1 of its specification): words, each
//! after its length in four bytes, then a text.

/// Separated by `|`.
const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
    accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|\
    content-language|content-length|content-location|content-md5|content-range|content-type|date|etag|\
    expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|\
    last-modified|location|max-forwards|pragma|proxy-authenticate|proxy-authorization|range|referer|\
    retry-after|server|te|trailer|transfer-encoding|upgrade|user-agent|vary|via|warning|\
    www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|keep-alive|origin";

const TEXT: &str = "\
    100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 \
    Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 \
    Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr \
    May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,\
    image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
    publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

pub(super) fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in WORDS.split('|') {
        bytes.extend([0, 0, 0, word.len() as u8]);
        bytes.extend(word.as_bytes());
    }
    bytes.extend(TEXT.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    #[test]
    fn the_dictionary_is_the_published_one() {
        let bytes = super::dictionary();
        let digest: String = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            (bytes.len(), digest.as_str()),
            (1423, "51d27341373f923f3cd88e1eb7162aeaa3723d7585ff2399201dc06498407f02")
        );
    }
}
