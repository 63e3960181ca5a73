"""How common words are in descriptions of software: the background for small catalogues.

Ten skills do not show that ``file`` says less than ``invoice``. The shares are those of 121,757 one-line
summaries of packages in two public registries, as stems; no set of the benchmark was used.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_BY_SHARE = {
    1: """
aggreg aim alchemi alert align analys appl arbitrari arm art artifact assert assign ast atom attack
background backup bank bayesian behavior big board boilerpl book bound busi byte callback camera canva
catalog certif checker chrome chunk circuit classifi clone cloudflar codebas codex column comparison
compliant condit confus consist constant consum continu convent cooki cordova correct count countri coverag
cpu crypto currenc dai db delet demo deprec detail diagram dict diff differenti dimension directli disk
distanc dn drag draw drive emb energi english enterpris env ethereum except extra facilit factori faster
filesystem financi flag float focus follow forecast formatt front gemini gen genom geometri gpt grade
graphic headless health hierarch highli home hybrid independ indic initi inspect instead integ issu jax
jupyterlab jwt keyboard kubernet latest leaflet less licens life listen lock login long magic mail maintain
manifest mark mask mathemat matplotlib mesh minimalist mirror mixin modal monaco move music mypi mysql nestj
nlp note nuxt oauth ocr offer onlin op opentelemetri opinion origin pai pair panel paper parti partner patch
permiss phone pi pip pixel place plain plu pluggabl png possibl practic precis preprocess present preserv
preset prettier preview privat pro processor produc programmat protect proto prototyp pull push rai rank raw
reason receiv recognit recommend recurs reduc regist regular reinforc reliabl represent reproduc resiz
resolut revers rfc right rollup root sandbox sass scaffold scalabl scanner scientif scope scraper selector
selenium sensor separ serverless shape shareabl sheet ship short signatur slack social solid spark spatial
spectrum speed sphinx ssh stat statement step streamlit studio sub super swagger switch synthet tab tailwind
take tensor tensorflow term thin topsi tracker transcript transfer transit trust tui tune twitter uniqu
variant vscode weather webhook win www
""",
    1.5: """
acceler addit alibaba altern apach appli archiv argument assembl asyncio autonom awesom bar batch beauti
best blockchain boto button calendar captur card channel ci classif click comment conveni coordin cost
creation decis deploy digit discord discoveri eas ecosystem edg electron endpoint enforc entiti evid exchang
exist experiment explor expo extern face famili fit folder foundat gate geo govern gulp handler har hardwar
header highlight histori ident improv info infrastructur inlin insid interpret invoic ip item iter jest keep
kernel label lambda langchain linear llama locat lodash logger loop low maco market math matrix menu merg
micro migrat mode modifi namespac natur navig neatli numer numpi odoo offlin organ orient orm os para
parallel pass physic picker plai plan player plone plug polici polyfil posit postcss pre prevent price
primit problem py quick quickli rag rang reader redux registri regress repo review rich risk robust sale
scale scienc screen scroll secret see serv setup skill solv solver sort specifi split sqlalchemi standalon
start statu strategi svelt symbol synchron target telegram thread toolbox transact ts tube verif viewer
vision vite voic watch weight workspac world
""",
    2: """
abstract activ address admin against agnost amazon anoth architectur asset attribut audit author avail awar
babel benchmark better binomi bit box bridg buffer capabl case cdk cell charact chart clean cm combin commit
compar complet complex compos comprehens compress connector consol construct copi cplusplu current customiz
dashboard datafram debug declar decod decor deploi descript desktop determinist dictionari direct docker dom
domain drop easier effect ember end enhanc estim exampl excel expos fix frame frontend fulli gatewai
gaussian global gpu grid gui hash human id identifi inject instanc instrument intern job jqueri knowledg
lang larg layout lib light limit logic mac make measur ml mobil mock modular mongo mongodb non normal notif
openapi orchestr org pack panda paramet part password payment per persist person plot postgresql printer
profil progress prompt publish purpos pydant pypi pytest qualiti quantum queue rate readabl redi releas
remov resolv reusabl robot router rpc runner sampl save scan schedul score scrape segment sequenc shell sign
signal similar size solut space spec speech sqlite statist stock suit syntax team telemetri trace trade
transport turn two unit unoffici usag virtual wallet websocket worker wrap yaml youtub
""",
    3: """
account across action ad addon advanc analyt android anim annot around asynchron auth azur back bootstrap
builder cluster contract convers csv de default defin dev differ doc driven driver edit effici embed encrypt
experi extend fastapi fetch flask flexibl friendli full graphql group infer inspir intellig jupyt kit lite
live loader match materi media meta metadata metric microsoft minim net neural next nodej notebook observ
openai pattern placehold port postgr predict print promis properti proxi random readi record refer remot
replac research reserv result retriev rout semant seri serial session side simplifi site smart socket
softwar stack static stub svg sync tag theme tini top torch train translat unifi univers upload user vector
verifi webpack websit widget xml
""",
    4: """
analyz arrai assist audio authent auto basic binari block bot bundl cach call chain chang chat claud color
commun compil cross dataset date deep devic directori displai dynam easili editor email enabl encod entri
error eslint evalu export express field filter find flow font fork form free game hook host hub icon index
input lab layer level link linux manipul middlewar modern monitor nest new npm option order page path pdf
point post public pure pytorch real relat repositori requir resourc respons return rule rust safe select
self send singl specif standard storag tabl token track tree updat url variabl variou view wai window word
workflow written zero
""",
    6: """
adapt algorithm angular async automat backend calcul com compat comput config context distribut download
element environ execut first github handl high import includ inform instal io kei lint load machin map
markdown memori messag method multipl name number oper optim output pipelin product program render report
request rest runtim schema secur simul small state store task termin transform us video write
""",
    8: """
access allow autom aw bind built check class cloud collect common connect contain content control core css
custom databas depend design detect document easi event extract featur git googl graph helper html languag
learn lightweight list llm log multi network offici pars parser perform protocol provid queri read search
share sql stream string structur style templat toolkit ui valu version visual vue
""",
    12: """
add analysi browser configur develop engin fast format http local object platform power process run set
sourc text time valid work
""",
    16: """
app applic build command convert creat definit django extens imag integr interact interfac java javascript
json line mcp nativ open servic support system test wrapper
""",
    24: """
agent ai cli code framework function implement manag node project sdk server web
""",
    32: """
base client compon file gener js model modul plugin react simpl typescript util
""",
    48: """
data script tool type
""",
    64: """
api librari packag
""",
    100: """
python
""",
    140: """

""",
}
"""Per mille of the summaries that have a stem, at least, and its stems."""

_SHARES: Mapping[str, float] = MappingProxyType(
    {stem: per_mille / 1000 for per_mille, stems in _BY_SHARE.items() for stem in stems.split()}
)

_RARE = 0.00005
"""The share of a stem that is not in the table."""


def background_share(stem: str) -> float:
    """The share of descriptions that have the stem, from 0 to 1."""
    return _SHARES.get(stem, _RARE)
