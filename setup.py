"""Hand the metadata in `settings.ini`, which nbdev reads as well, to setuptools. Nothing is said twice."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

root = Path(__file__).parent
ini = ConfigParser(delimiters=["="])
ini.read(root / "settings.ini", encoding="utf-8")
s = ini["DEFAULT"]

package, patterns = s["package_data"].split("=")
status = {"3": "3 - Alpha", "4": "4 - Beta", "5": "5 - Production/Stable"}[s["status"]]
extras = {key.removesuffix("_requirements"): value.split() for key, value in s.items() if key.endswith("_requirements")}

# the package index shows the README far from the files that it links to
files = f"{s['git_url']}/blob/{s['branch']}/"
readme = (root / "README.md").read_text(encoding="utf-8")
readme = re.sub(r"\]\((?!https?://|#)([^)]+)\)", lambda link: f"]({files}{link[1]})", readme)

setup(
    name=s["lib_name"],
    version=s["version"],
    description=s["description"],
    long_description=readme,
    long_description_content_type="text/markdown",
    keywords=s["keywords"].split(),
    author=s["author"],
    author_email=s["author_email"],
    license_expression={"apache2": "Apache-2.0"}[s["license"]],
    license_files=["LICENSE"],
    url=s["git_url"],
    project_urls={"Documentation": s["doc_host"] + s["doc_baseurl"]},
    classifiers=[
        f"Development Status :: {status}",
        f"Intended Audience :: {s['audience']}",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        *(f"Programming Language :: Python :: {version}" for version in s["python_versions"].split()),
    ],
    python_requires=f">={s['min_python']}",
    packages=find_packages(include=[s["lib_path"], f"{s['lib_path']}.*"]),
    package_data={package: patterns.split()},
    install_requires=s["requirements"].split(),
    extras_require=extras,
    entry_points={"console_scripts": s["console_scripts"].split()},
    zip_safe=False,
)
