//! What the network of pods needs of the kernel. It is tried once, when a network is claimed, so that a kernel without it is named
//! at once and not by the first service that leads nowhere.

use std::io;
use std::os::fd::AsFd;

use super::filter::nft;
use super::namespace::Namespace;

/// Something that the kernel may have been built or started without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    what: &'static str,
    module: &'static str,
    option: &'static str,
}

const VETH: Feature = Feature {
    what: "virtual network links",
    module: "veth",
    option: "CONFIG_VETH",
};

/// Each with a part of a table that needs it, and everything before it.
const FILTERS: [(Feature, &str); 6] = [
    (
        Feature {
            what: "packet filter tables",
            module: "nf_tables",
            option: "CONFIG_NF_TABLES_IPV4",
        },
        "",
    ),
    (
        Feature {
            what: "packet filter chains that translate addresses",
            module: "nft_chain_nat",
            option: "CONFIG_NFT_NAT",
        },
        "chain a { type nat hook prerouting priority -100; }",
    ),
    (
        Feature {
            what: "the packet filter expression `dnat`",
            module: "nft_nat",
            option: "CONFIG_NFT_NAT",
        },
        "chain b { meta l4proto tcp dnat to 127.0.0.1:1; }",
    ),
    (
        Feature {
            what: "the packet filter expression `numgen`",
            module: "nft_numgen",
            option: "CONFIG_NFT_NUMGEN",
        },
        "chain c { numgen inc mod 2 vmap { 0 : accept, 1 : drop }; }",
    ),
    (
        Feature {
            what: "the packet filter expression `masquerade`",
            module: "nft_masq",
            option: "CONFIG_NFT_MASQ",
        },
        "chain d { type nat hook postrouting priority 100; ip saddr 127.0.0.1 masquerade; }",
    ),
    (
        Feature {
            what: "the packet filter expression `reject`",
            module: "nft_reject_ipv4",
            option: "CONFIG_NFT_REJECT_IPV4",
        },
        "chain e { meta l4proto tcp reject with tcp reset; }",
    ),
];

/// What the kernel lacks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MissingError {
    #[error(
        "pods need {what} of the kernel, and it refuses them ({error}). Type `sudo modprobe {module}` on the machine, outside of any \
         container; if there is no such module, the kernel was built without {option}",
        what = feature.what, module = feature.module, option = feature.option
    )]
    Feature { feature: Feature, error: String },
    #[error(
        "pods need network links and packet filter rules, and this process may not make them ({0}). In a container, start it with `--cap-add NET_ADMIN`, \
         or run this outside of it"
    )]
    Forbidden(String),
}

/// Tries one link and one table. Nothing of it stays.
pub(super) fn check() -> Result<(), MissingError> {
    link().map_err(|error| missing(VETH, &error))?;
    // Where all goes well, this starts one program.
    let all = FILTERS.map(|(_, part)| part).join("\n");
    table(&all).or_else(|_| first_missing(table))
}

fn link() -> io::Result<()> {
    let (namespace, mut inside) = Namespace::create()?;
    inside.add_pair(("a", 0x100), "b", namespace.as_fd())
}

fn table(chains: &str) -> io::Result<()> {
    nft(&["--check"], &format!("table ip p {{\n{chains}\n}}\n"))
}

fn first_missing(table: impl Fn(&str) -> io::Result<()>) -> Result<(), MissingError> {
    for (feature, part) in FILTERS {
        if let Err(error) = table(part) {
            return Err(missing(feature, &error));
        }
    }
    Ok(())
}

fn missing(feature: Feature, error: &io::Error) -> MissingError {
    let error = error.to_string();
    match error.contains("not permitted") {
        true => MissingError::Forbidden(error),
        false => MissingError::Feature { feature, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_everything_and_nothing_stays() {
        check().unwrap();
        let output = crate::node::program("nft").args(["list", "tables"]).output().unwrap();
        let tables = String::from_utf8(output.stdout).unwrap();
        assert!(!tables.lines().any(|line| line == "table ip p"), "{tables}");
        // A part that is refused is found out.
        assert!(table("chain a { no such thing; }").is_err());
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        // Given kernels without one thing each
        for (word, module, option) in [
            ("type nat hook prerouting", "nft_chain_nat", "CONFIG_NFT_NAT"),
            ("dnat", "nft_nat", "CONFIG_NFT_NAT"),
            ("numgen", "nft_numgen", "CONFIG_NFT_NUMGEN"),
            ("masquerade", "nft_masq", "CONFIG_NFT_MASQ"),
            ("reject", "nft_reject_ipv4", "CONFIG_NFT_REJECT_IPV4"),
            ("", "nf_tables", "CONFIG_NF_TABLES"),
        ] {
            let refusing = |part: &str| match part.contains(word) {
                true => Err(io::Error::other("nft refuses the rules: No such file or directory")),
                false => Ok(()),
            };
            // Then the error says which, and what to type
            let error = first_missing(refusing).unwrap_err().to_string();
            assert!(error.contains(&format!("sudo modprobe {module}`")), "{error}");
            assert!(error.contains(option) && error.contains("No such file"), "{error}");
        }
        let error = missing(VETH, &io::Error::other("Operation not supported")).to_string();
        assert!(
            error.contains("sudo modprobe veth`") && error.contains("CONFIG_VETH"),
            "{error}"
        );
        // And a container without the permission is told so
        let error = first_missing(|_| Err(io::Error::other("Operation not permitted (you must be root)")));
        assert!(error.unwrap_err().to_string().contains("NET_ADMIN"));
    }
}
